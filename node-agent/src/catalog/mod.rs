//! Where models are announced.
//!
//! [`Hub`] is the one place that knows what this node tells the world; the pull catalog (`ListModels`, `WatchModels`) reads it.
//! [`watcher`] is the other end of that: how a proxy follows an agent.

mod hub;
pub mod push;
pub mod watcher;

pub use hub::{Hub, Watcher};
