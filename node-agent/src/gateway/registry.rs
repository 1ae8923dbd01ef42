//! What is known of every node: a pure data structure. Time comes in from outside, nothing here waits or does I/O.
//!
//! ```text
//!   Connecting ──snapshot──▶ Connected ──stream breaks──▶ Silent, leases running ──leases end──▶ Silent, nothing believed
//!        └──cannot connect──▶ Silent      ◀──snapshot──────────┘                                     │
//!                                  Connected ◀──snapshot──────────────────────────────────────────────┘
//! ```
//!
//! While an agent is silent each of its models has a lease of its own: that of the node, renewed for as long as the model's
//! guard itself says that it is there (see `renew`).
//!
//! A model is known by node and generation; names are looked up over all of them. A goodbye of one generation therefore
//! never touches another that carries the same name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use slurm_serve_proto::v1::ModelState;

use super::replica::{Announced, Load, Replica};

#[cfg(test)]
mod tests;

/// How long a failure is remembered after its agent has forgotten it.
const FAILURE_KEPT: Duration = Duration::from_secs(600);

/// Failures remembered at most; the oldest goes first.
const FAILURES_KEPT: usize = 256;

/// One moment on both clocks: the steady one for leases, the wall's for what agents say.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Steady.
    pub instant: Instant,
    /// Milliseconds since the epoch.
    pub unix_ms: i64,
}

impl Now {
    /// This moment.
    pub fn read() -> Self {
        Self {
            instant: Instant::now(),
            unix_ms: crate::clock::now_ms(),
        }
    }
}

/// How an agent is reached right now.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// Nothing was heard yet, and nothing has failed yet.
    Connecting,
    /// Its snapshot is here and the stream is open.
    Connected,
    /// The stream broke, or never came up: why, in one line.
    Silent(String),
}

/// One node and what its agent said.
#[derive(Debug)]
pub struct Node {
    /// How it is reached.
    pub link: Link,
    /// Since when, in milliseconds since the epoch.
    pub since_ms: i64,
    /// Whether a snapshot ever came.
    heard: bool,
    lease: Duration,
    /// Set while silent: until when what it said is believed.
    lease_ends: Option<Instant>,
    /// Whether a stream that opened has already prolonged this lease.
    prolonged: bool,
    /// Set while silent, by generation: until when a model is believed because its guard said so.
    renewed: BTreeMap<String, Instant>,
    /// By generation.
    models: BTreeMap<String, Arc<Replica>>,
}

/// A snapshot with its keys opened.
#[derive(Debug)]
pub struct Snapshot {
    /// How long it is believed after the stream broke.
    pub lease: Duration,
    /// All there is.
    pub models: Vec<Announced>,
}

/// Everything known, of all nodes.
#[derive(Debug, Default)]
pub struct Registry {
    nodes: BTreeMap<String, Node>,
    /// Failed, and forgotten by the agent since.
    failures: Vec<Arc<Replica>>,
}

/// What left routing by a change: see [`Load::settled`].
pub type Leaving = Vec<Arc<Load>>;

impl Registry {
    /// A node that is to be watched from now on.
    pub fn add_node(&mut self, name: &str, now: Now) {
        let node = Node {
            link: Link::Connecting,
            since_ms: now.unix_ms,
            heard: false,
            lease: Duration::ZERO,
            lease_ends: None,
            prolonged: false,
            renewed: BTreeMap::new(),
            models: BTreeMap::new(),
        };
        self.nodes.insert(name.to_owned(), node);
    }

    /// A node that is none any more: its models go with it.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// The agent has answered and its snapshot is to come: what it said before is believed for one more lease, once, since an
    /// agent that has just started waits for its runners before it speaks.
    pub fn opened(&mut self, name: &str, now: Now) {
        if let Some(node) = self.nodes.get_mut(name)
            && node.lease_ends.is_some()
            && !node.prolonged
        {
            node.prolonged = true;
            node.lease_ends = Some(now.instant + node.lease);
        }
    }

    /// Replaces all that was known of the node.
    pub fn snapshot(&mut self, name: &str, snapshot: Snapshot, now: Now) -> Leaving {
        let Some(node) = self.nodes.get_mut(name) else {
            return Vec::new();
        };
        if node.link != Link::Connected {
            node.link = Link::Connected;
            node.since_ms = now.unix_ms;
        }
        node.heard = true;
        node.lease = snapshot.lease;
        node.lease_ends = None;
        node.renewed.clear();
        let before = std::mem::take(&mut node.models);
        for announced in snapshot.models {
            let generation = announced.model.generation.clone();
            let load = before.get(&generation).map(|old| old.load.clone());
            let replica = Replica::new(announced, load.unwrap_or_default());
            node.models.insert(generation, Arc::new(replica));
        }
        let leaving = before.values().filter(|old| {
            let new = node.models.get(&old.model.generation);
            old.takes_requests(now.unix_ms) && !new.is_some_and(|new| new.takes_requests(now.unix_ms))
        });
        let leaving = leaving.map(|old| old.load.clone()).collect();
        let current: Vec<_> = node.models.values().cloned().collect();
        let gone = before
            .into_values()
            .filter(|old| current.iter().all(|new| !same(old, new)));
        let gone: Vec<_> = gone.collect();
        gone.into_iter().for_each(|old| self.remember(old));
        current.iter().for_each(|new| self.forgive(new));
        leaving
    }

    /// Enters what is new or changed and drops what is gone.
    pub fn delta(&mut self, name: &str, upserted: Vec<Announced>, removed: &[String], now: Now) -> Leaving {
        let (mut leaving, mut gone, mut current) = (Vec::new(), Vec::new(), Vec::new());
        let Some(node) = self.nodes.get_mut(name) else {
            return leaving;
        };
        for generation in removed {
            if let Some(old) = node.models.remove(generation) {
                leaving.push(old.load.clone());
                gone.push(old);
            }
        }
        for announced in upserted {
            let generation = announced.model.generation.clone();
            let load = node.models.get(&generation).map(|old| old.load.clone());
            let replica = Arc::new(Replica::new(announced, load.unwrap_or_default()));
            if !replica.takes_requests(now.unix_ms) {
                leaving.push(replica.load.clone());
            }
            current.push(replica.clone());
            node.models.insert(generation, replica);
        }
        gone.into_iter().for_each(|old| self.remember(old));
        current.iter().for_each(|new| self.forgive(new));
        leaving
    }

    /// The stream broke or could not be had; `heard` is when the agent was heard last. The lease runs from then.
    pub fn broken(&mut self, name: &str, why: String, heard: Instant, now: Now) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.link == Link::Connected {
            node.lease_ends = Some(heard + node.lease);
            node.prolonged = false;
        }
        if !matches!(node.link, Link::Silent(_)) {
            node.since_ms = now.unix_ms;
        }
        node.link = Link::Silent(why);
    }

    /// What a silent node's guards may be asked for, and the node's lease; `None` while its agent speaks for them.
    pub fn to_ask(&self, name: &str, now: Now) -> Option<(Duration, Vec<Arc<Replica>>)> {
        let node = self.nodes.get(name).filter(|node| node.lease_ends.is_some())?;
        let ready = node
            .models
            .values()
            .filter(|replica| replica.takes_requests(now.unix_ms));
        Some((node.lease, ready.cloned().collect()))
    }

    /// A silent node's guard said at `asked` that this generation is there: it is believed for one more lease.
    pub fn renew(&mut self, name: &str, generation: &str, asked: Instant) {
        if let Some(node) = self.nodes.get_mut(name)
            && node.lease_ends.is_some()
            && node.models.contains_key(generation)
        {
            node.renewed.insert(generation.to_owned(), asked + node.lease);
        }
    }

    /// A silent node's guard said that this generation is not there any more, or that it is ending.
    pub fn disown(&mut self, name: &str, generation: &str) {
        if let Some(node) = self.nodes.get_mut(name)
            && node.lease_ends.is_some()
        {
            node.models.remove(generation);
        }
    }

    /// Drops what may be believed no longer. Returns the nodes that lost models by it, and when to look again.
    pub fn expire(&mut self, now: Now) -> (Vec<String>, Option<Duration>) {
        let (mut ended, mut next) = (Vec::new(), None::<Duration>);
        let mut soonest = |wait: Duration| next = Some(next.map_or(wait, |other| other.min(wait)));
        for (name, node) in &mut self.nodes {
            if let Some(ends) = node.lease_ends {
                let before = node.models.len();
                let renewed = &node.renewed;
                let believed =
                    |generation: &String| renewed.get(generation).map_or(ends, |renewed| ends.max(*renewed));
                node.models
                    .retain(|generation, _| believed(generation) > now.instant);
                node.models
                    .keys()
                    .for_each(|generation| soonest(believed(generation) - now.instant));
                if node.models.len() < before {
                    ended.push(name.clone());
                }
                if node.models.is_empty() {
                    node.lease_ends = None;
                    node.renewed.clear();
                }
            }
            node.models.retain(|_, replica| !replica.is_expired(now.unix_ms));
            for ms in node.models.values().filter_map(|replica| replica.expires_ms()) {
                soonest(Duration::from_millis(
                    ms.saturating_sub(now.unix_ms).max(0).unsigned_abs(),
                ));
            }
        }
        let kept = i64::try_from(FAILURE_KEPT.as_millis()).unwrap_or(i64::MAX);
        self.failures
            .retain(|failure| now.unix_ms.saturating_sub(failure.model.state_since_ms) < kept);
        (ended, next)
    }

    /// The key that is known already for a generation.
    pub fn bearer(&self, node: &str, generation: &str) -> Option<HeaderValue> {
        self.nodes.get(node)?.models.get(generation)?.bearer.clone()
    }

    /// Nodes whose agents have said what they have.
    pub fn heard(&self) -> impl Iterator<Item = &String> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.heard)
            .map(|(name, _)| name)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&String, &Node)> {
        self.nodes.iter()
    }

    /// All that agents tell of, in any state.
    pub fn replicas(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.nodes.values().flat_map(|node| node.models.values())
    }

    /// What failed in the last minutes and is told of by no agent any more.
    pub fn failures(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.failures.iter()
    }

    /// Keeps a failure, so that the next who asks learns why there is no such model any more.
    fn remember(&mut self, gone: Arc<Replica>) {
        if gone.state() != ModelState::Failed || !gone.model.published {
            return;
        }
        self.failures.retain(|old| !same(old, &gone));
        if self.failures.len() >= FAILURES_KEPT {
            self.failures.remove(0);
        }
        self.failures.push(gone);
    }

    /// A failure is the past once a later launch stands under the same name.
    fn forgive(&mut self, new: &Replica) {
        self.failures.retain(|old| old.model.name != new.model.name);
    }
}

fn same(one: &Replica, other: &Replica) -> bool {
    one.model.generation == other.model.generation
}
