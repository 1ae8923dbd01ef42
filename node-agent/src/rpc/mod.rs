//! gRPC, and the one exchange beside it: who calls, and translation between the wire and the rooms behind it. No decision is taken here but who may call what.
//!
//! | listener | services |
//! |---|---|
//! | Unix socket | Hooks, Runner, Jobs, Catalog, health, reflection |
//! | TCP (munge) | Jobs, Catalog, Peers, health, reflection |
//! | Unix socket beside the first | ports of models (`handover`) |

mod caller;
mod catalog;
mod hooks;
mod jobs;
mod listen;
mod measure;
mod munge_layer;
mod peers;
mod places;
mod ports;
mod runner;
mod show;

use std::sync::Arc;

pub use self::caller::{Caller, Roles};
pub use self::listen::{serve_tcp, serve_unix};
pub use self::ports::serve_ports;

use crate::job::Jobs;
use crate::peers::Peers;
use crate::serve::Models;

/// What every service has at hand.
#[derive(Debug, Clone)]
pub struct Rooms {
    /// The jobs of this node.
    pub jobs: Arc<Jobs>,
    /// Its models.
    pub models: Arc<Models>,
    /// The agents of other nodes.
    pub peers: Arc<Peers>,
    /// Names this life of the agent.
    pub instance: Arc<str>,
}
