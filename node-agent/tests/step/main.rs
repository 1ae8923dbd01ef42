//! The runner as a process, against an agent made here and the stub engine: what it tells, what it serves, what it leaves.

mod again;
mod agent;
mod ending;
mod failing;
mod hosting;
mod liveness;
mod runner;
mod serving;
