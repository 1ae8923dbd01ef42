//! gRPC: who calls, and translation between the wire and the rooms behind it. No decision is taken here but who may call what.
//!
//! | listener | services |
//! |---|---|
//! | Unix socket | Hooks, Runner, Jobs, Catalog, health, reflection |
//! | TCP (munge) | Jobs, Catalog, health, reflection |

mod caller;
mod catalog;
mod hooks;
mod jobs;
mod listen;
mod munge_layer;
mod runner;
mod show;

use std::sync::Arc;

pub use self::caller::{Caller, Roles};
pub use self::listen::{serve_tcp, serve_unix};

use crate::job::Jobs;
use crate::serve::Models;

/// What every service has at hand.
#[derive(Debug, Clone)]
pub struct Rooms {
    /// The jobs of this node.
    pub jobs: Arc<Jobs>,
    /// Its models.
    pub models: Arc<Models>,
    /// Names this life of the agent.
    pub instance: Arc<str>,
}
