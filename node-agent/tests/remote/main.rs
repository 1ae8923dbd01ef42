//! Who may call an agent over TCP, and what becomes of whoever may not: the agent's own listeners with a catalog behind them, and clients of
//! every kind. Munge itself is played on a lab (`tests/e2e`).

mod pki;
mod site;
mod telemetry;

mod bad_input;
mod limits;
mod page;
mod program;
mod proofs;
mod rotation;
