//! The whole product on a lab: what the end-to-end tests, the demo and the benchmarks stand on.

mod agents;
mod job;
mod said;
mod settings;
mod site;
mod stream;
mod stub;
pub mod tour;

pub use job::Job;
pub use said::{Said, has};
pub use site::{Engine, Options, Site};
pub use stream::{Answers, Flood, Stream};
pub use stub::Stub;
