//! The whole product on a lab: what the end-to-end tests, the demo and the benchmarks stand on.

mod agents;
mod clock;
mod columns;
mod compiled;
pub mod endings;
pub mod impostor;
mod job;
pub mod outside;
mod said;
mod settings;
mod site;
mod stream;
mod stub;
mod tidy;
pub mod tour;

pub use columns::columns;
pub use compiled::compiled;
pub use job::Job;
pub use said::{Said, has};
pub use site::{Engine, Options, Site};
pub use stream::Stream;
pub use stub::Stub;
