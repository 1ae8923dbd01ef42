//! The gateway over real sockets: a stand-in for an agent (a gRPC server on a Unix socket) announces stand-ins for guards (HTTP
//! servers on loopback), and a client asks.

mod fake_agent;
mod fake_guard;
mod harness;

mod announcing;
mod errors;
mod listing;
mod observed;
mod passing;
mod retrying;
mod with_guard;
