//! What a guard says of itself, beside the paths that lead to its engine: for whoever routes to it and cannot ask its agent.

use serde::{Deserialize, Serialize};

/// Where it is asked, with GET and the job's key like every other path.
pub const PATH: &str = "/slurm-serve/v1/status";

/// The answer, as JSON. A reader takes fields that it does not know for a newer guard's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// The public name.
    pub model: String,
    /// Which launch it is; another one than was announced is not the one that is meant.
    pub generation: String,
    /// `loading`, `ready`, `unresponsive` (the engine answers nothing), `restarting`, `draining` (what is new is refused) or `ended`.
    pub state: String,
    /// Requests that it is passing on just now.
    pub in_flight: u32,
}

impl GuardStatus {
    /// The state in which requests are passed on.
    pub const READY: &'static str = "ready";
}
