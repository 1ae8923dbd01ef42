//! The gateway tells catalogs of all nodes' models, in the agents' place.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::registry::{Now, Registry};
use super::replica::Replica;
use crate::catalog::push::{Entry, Push, Status};

/// How long a catalog is waited for before an agent is told that its model is out of the catalogs. The agent itself waits for its own
/// `settle_timeout` at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// The catalogs that are kept here.
pub struct Catalogs {
    push: Push,
    /// Nodes whose agents were heard in this life: of others it is not known what they have.
    heard: Mutex<BTreeSet<String>>,
}

impl Catalogs {
    /// Of these.
    pub fn new(push: Push) -> Self {
        Self {
            push,
            heard: Mutex::default(),
        }
    }

    /// Is there none?
    pub fn is_idle(&self) -> bool {
        self.push.is_idle()
    }

    /// How each is.
    pub fn status(&self) -> Vec<Status> {
        self.push.status()
    }

    /// Whose the entries are.
    pub fn know(&self, cluster: &str) {
        self.push.know(cluster);
    }

    /// The registry is like this now; the revision to wait for.
    pub fn tell(&self, registry: &Registry, now: Now) -> u64 {
        if self.is_idle() {
            return 0;
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.extend(registry.heard().cloned());
        let there = registry
            .replicas()
            .filter(|replica| replica.takes_requests(now.unix_ms));
        let entries = there.filter_map(|replica| entry(replica)).collect();
        self.push.tell(entries, heard.iter().cloned())
    }

    /// Resolves once the catalogs are at that revision.
    pub async fn settled(&self, revision: u64) {
        if !self.is_idle() {
            self.push.settled(revision, PATIENCE).await;
        }
    }
}

fn entry(replica: &Replica) -> Option<Entry> {
    let bearer = replica.bearer.as_ref()?.to_str().ok()?;
    Entry::of(&replica.model, bearer.strip_prefix("Bearer ")?)
}
