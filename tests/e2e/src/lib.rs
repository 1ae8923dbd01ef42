//! The whole product on a lab: what the end-to-end tests, the demo and the benchmarks stand on.

mod job;
mod settings;
mod site;
pub mod tour;

pub use job::Job;
pub use site::{Engine, Options, Site};
