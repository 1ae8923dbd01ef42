//! The runner as a process, against an agent made here and the stub engine: what it tells, what it serves, what it leaves.

mod agent;
mod ending;
mod failing;
mod hosting;
mod runner;
mod serving;
