//! What GPUs and this node do, and for which job.
//!
//! ```text
//!   driver ──▶ gpu (a process of its own) ─┐
//!   /proc  ──▶ host ───────────────────────┼──▶ NodeSample, each second ──▶ watchers, /metrics, accounts of jobs ──▶ reports
//!   prolog ──▶ attribution ────────────────┘
//! ```
//!
//! The contract's own messages are what is passed around here: what is told is what was measured, and a value that is not there is `None`.

pub mod gpu;
mod host;
mod own;
mod sampling;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::gpu::Keeper;
use crate::config;
use crate::rpc::Counts;

/// What samples are of.
#[derive(Debug, Clone)]
pub struct Place {
    /// Slurm's NodeName.
    pub node: String,
    /// ClusterName, once it is known.
    pub cluster: watch::Receiver<String>,
    /// This program's file.
    pub program: PathBuf,
    /// How often each method was called.
    pub counts: Counts,
    /// Who may watch at once.
    pub max_watchers: usize,
}

/// The samples of this node.
#[derive(Debug)]
pub struct Telemetry {
    keeper: Keeper,
    sample: watch::Receiver<Arc<v1::NodeSample>>,
    watchers: Arc<Semaphore>,
}

/// Somebody who watches.
#[derive(Debug)]
pub struct Watching {
    /// Each sample; `sequence` is 0 before the first one.
    pub samples: watch::Receiver<Arc<v1::NodeSample>>,
    _place: OwnedSemaphorePermit,
}

impl Watching {
    /// Of these samples, as long as `place` is held.
    pub fn new(samples: watch::Receiver<Arc<v1::NodeSample>>, place: OwnedSemaphorePermit) -> Self {
        Self {
            samples,
            _place: place,
        }
    }
}

impl Telemetry {
    /// Begins to sample. `None`: it is turned off.
    pub fn start(place: Place, config: &config::Telemetry) -> Option<Arc<Self>> {
        if !config.enabled {
            return None;
        }
        let keeper = Keeper::start(place.program, config);
        let first = v1::NodeSample {
            node: place.node,
            ..v1::NodeSample::default()
        };
        let (told, sample) = watch::channel(Arc::new(first));
        tokio::spawn(sampling::run(
            told,
            keeper.latest(),
            place.cluster,
            place.counts,
            config.interval,
        ));
        Some(Arc::new(Self {
            keeper,
            sample,
            watchers: Arc::new(Semaphore::new(place.max_watchers)),
        }))
    }

    /// Each sample from now on, the last one at once. `None`: too many watch already.
    pub fn watch(&self) -> Option<Watching> {
        let place = self.watchers.clone().try_acquire_owned().ok()?;
        Some(Watching::new(self.sample.clone(), place))
    }

    /// The last sample.
    pub fn latest(&self) -> Arc<v1::NodeSample> {
        self.sample.borrow().clone()
    }

    /// Lets go of the driver for so long, or until [`Telemetry::resume`]. False: a call into the driver does not come back.
    pub async fn quiesce(&self, time: Option<Duration>) -> bool {
        self.keeper.quiesce(time).await
    }

    /// Ends [`Telemetry::quiesce`].
    pub async fn resume(&self) {
        self.keeper.resume().await;
    }
}
