//! What this node announces, in revisions, and who has acted upon which.
//!
//! Each change of a model gets the next revision. A watcher is woken, takes what changed since its last revision, and acknowledges what it
//! has acted upon. [`Hub::released`] is how an ending model knows that every watcher has let go of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slurm_serve_proto::v1::Model;
use tokio::sync::watch;

#[derive(Debug, Default)]
struct Known {
    revision: u64,
    /// By generation; the revision is that of its last change.
    models: BTreeMap<String, (u64, Model)>,
    /// Generations that were forgotten, until nobody can have missed it.
    removed: BTreeMap<String, u64>,
    /// Acknowledged revision of each watcher.
    watchers: HashMap<u64, u64>,
    next_watcher: u64,
}

/// What this node announces.
#[derive(Debug)]
pub struct Hub {
    known: Mutex<Known>,
    /// The latest revision.
    changed: watch::Sender<u64>,
    /// Counts up with each acknowledgement, and with each watcher that leaves.
    acked: watch::Sender<u64>,
    max_watchers: usize,
}

/// One who watches; leaves when dropped.
#[derive(Debug)]
pub struct Watcher {
    hub: Arc<Hub>,
    id: u64,
    seen: u64,
    changed: watch::Receiver<u64>,
}

/// What a watcher has to be told.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// The revision that this brings the watcher to.
    pub revision: u64,
    /// New or changed.
    pub upserted: Vec<Model>,
    /// Generations to forget.
    pub removed: Vec<String>,
}

impl Hub {
    /// An empty one, for at most `max_watchers` watchers.
    pub fn new(max_watchers: usize) -> Arc<Self> {
        // An arbitrary start, so that an acknowledgement of a former life means nothing in this one.
        let revision = u64::from(rand::random::<u32>()) << 16;
        let known = Mutex::new(Known {
            revision,
            ..Known::default()
        });
        Arc::new(Self {
            known,
            changed: watch::Sender::new(revision),
            acked: watch::Sender::new(0),
            max_watchers,
        })
    }

    /// Announces a model, or a change of it. Returns the revision of the change.
    pub fn set(&self, model: Model) -> u64 {
        let mut known = self.lock();
        known.revision += 1;
        let revision = known.revision;
        known.models.insert(model.generation.clone(), (revision, model));
        drop(known);
        self.changed.send_replace(revision);
        revision
    }

    /// Forgets a generation.
    pub fn remove(&self, generation: &str) {
        let mut known = self.lock();
        if known.models.remove(generation).is_none() {
            return;
        }
        known.revision += 1;
        let revision = known.revision;
        // Whoever comes later begins with a snapshot and need not be told.
        if !known.watchers.is_empty() {
            known.removed.insert(generation.to_owned(), revision);
        }
        drop(known);
        self.changed.send_replace(revision);
    }

    /// All there is.
    pub fn models(&self) -> Vec<Model> {
        self.lock()
            .models
            .values()
            .map(|(_, model)| model.clone())
            .collect()
    }

    /// Resolves once every present watcher has acknowledged `revision` or left.
    pub async fn released(&self, revision: u64) {
        let mut acked = self.acked.subscribe();
        while self.lock().watchers.values().any(|seen| *seen < revision) {
            if acked.changed().await.is_err() {
                return;
            }
        }
    }

    /// A new watcher, who knows nothing yet; `None` if there are too many.
    pub fn watch(self: &Arc<Self>) -> Option<Watcher> {
        let mut known = self.lock();
        if known.watchers.len() >= self.max_watchers {
            return None;
        }
        let id = known.next_watcher;
        known.next_watcher += 1;
        known.watchers.insert(id, 0);
        drop(known);
        Some(Watcher {
            hub: self.clone(),
            id,
            seen: 0,
            changed: self.changed.subscribe(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Everything there is, for a start.
    pub fn snapshot(&mut self) -> Changes {
        let known = self.hub.lock();
        self.seen = known.revision;
        Changes {
            revision: known.revision,
            upserted: known.models.values().map(|(_, model)| model.clone()).collect(),
            removed: Vec::new(),
        }
    }

    /// Waits until there is something new, and takes it.
    pub async fn next(&mut self) -> Changes {
        loop {
            let changes = self.take();
            if changes.revision > self.seen {
                self.seen = changes.revision;
                return changes;
            }
            if self.changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn take(&mut self) -> Changes {
        // Marked before the look, so that a change right after it wakes us.
        self.changed.mark_unchanged();
        let known = self.hub.lock();
        Changes {
            revision: known.revision,
            upserted: known
                .models
                .values()
                .filter(|(r, _)| *r > self.seen)
                .map(|(_, m)| m.clone())
                .collect(),
            removed: known
                .removed
                .iter()
                .filter(|(_, r)| **r > self.seen)
                .map(|(g, _)| g.clone())
                .collect(),
        }
    }

    /// The latest revision that this watcher was told of.
    pub fn told(&self) -> u64 {
        self.seen
    }

    /// A handle by which the other half of the stream acknowledges.
    pub fn acknowledger(&self) -> impl Fn(u64) + Send + 'static {
        let (hub, id) = (Arc::downgrade(&self.hub), self.id);
        move |revision| {
            let Some(hub) = hub.upgrade() else { return };
            let mut known = hub.lock();
            // Nobody can have acted upon what does not exist yet.
            let latest = known.revision;
            if let Some(acked) = known.watchers.get_mut(&id) {
                *acked = (*acked).max(revision.min(latest));
            }
            let oldest = known.watchers.values().copied().min().unwrap_or(latest);
            known.removed.retain(|_, revision| *revision > oldest);
            drop(known);
            hub.acked.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.lock().watchers.remove(&self.id);
        self.hub.acked.send_modify(|count| *count = count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn model(generation: &str) -> Model {
        Model {
            generation: generation.into(),
            ..Model::default()
        }
    }

    #[tokio::test]
    async fn a_watcher_gets_a_snapshot_then_each_change_once() {
        let hub = Hub::new(4);
        hub.set(model("a"));
        let mut watcher = hub.watch().unwrap();
        assert_eq!(watcher.snapshot().upserted, [model("a")]);
        assert!(watcher.next().now_or_never().is_none());
        hub.set(model("b"));
        hub.remove("a");
        let changes = watcher.next().await;
        assert_eq!(
            (changes.upserted, changes.removed),
            (vec![model("b")], vec!["a".to_owned()])
        );
        assert!(watcher.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn released_waits_for_every_watcher_and_for_those_that_leave() {
        let hub = Hub::new(4);
        let (mut one, two) = (hub.watch().unwrap(), hub.watch().unwrap());
        let revision = hub.set(model("a"));
        let released = hub.released(revision);
        tokio::pin!(released);
        assert!((&mut released).now_or_never().is_none());
        let told = one.next().await.revision;
        one.acknowledger()(told);
        assert!(
            (&mut released).now_or_never().is_none(),
            "the second has not answered"
        );
        drop(two);
        released.await;
    }

    #[tokio::test]
    async fn nobody_acknowledges_the_future() {
        let hub = Hub::new(4);
        let watcher = hub.watch().unwrap();
        watcher.acknowledger()(u64::MAX);
        let revision = hub.set(model("a"));
        assert!(hub.released(revision).now_or_never().is_none());
    }

    #[test]
    fn watchers_are_bounded() {
        let hub = Hub::new(1);
        let first = hub.watch();
        assert!(first.is_some() && hub.watch().is_none());
        drop(first);
        assert!(hub.watch().is_some());
    }
}
