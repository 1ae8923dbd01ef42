//! gRPC, and the one exchange beside it: who calls, and translation between the wire and the rooms behind it. No decision is taken here but who may call what.
//!
//! | listener | services |
//! |---|---|
//! | Unix socket | Hooks, Runner, Jobs, Catalog, Telemetry, health, reflection |
//! | TCP (munge) | Jobs, Catalog, Telemetry, Peers, health, reflection |
//! | TCP with TLS (token, certificate) | Jobs, Catalog, Telemetry, health, reflection |
//! | Unix socket beside the first | ports of models (`handover`) |

mod caller;
mod catalog;
mod counts;
mod gate;
mod hooks;
mod jobs;
mod listen;
mod measure;
mod munge_gate;
mod peers;
mod places;
mod ports;
mod refusals;
mod runner;
mod show;
mod telemetry;
mod tls;

use std::sync::Arc;

pub use self::caller::{Caller, Roles, Via};
pub use self::counts::Counts;
pub use self::listen::{bind_tcp, serve_tcp, serve_tls, serve_unix};
pub use self::ports::serve_ports;
pub use self::tls::expiry as tls_expiry;

use crate::job::Jobs;
use crate::peers::Peers;
use crate::serve::Models;
use crate::telemetry::Telemetry;

/// What every service has at hand.
#[derive(Debug, Clone)]
pub struct Rooms {
    /// The jobs of this node.
    pub jobs: Arc<Jobs>,
    /// Its models.
    pub models: Arc<Models>,
    /// The agents of other nodes.
    pub peers: Arc<Peers>,
    /// What its GPUs do; `None` where that is turned off.
    pub telemetry: Option<Arc<Telemetry>>,
    /// How often each method was called.
    pub counts: Counts,
    /// Names this life of the agent.
    pub instance: Arc<str>,
}
