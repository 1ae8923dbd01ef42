//! One task for each catalog: makes it agree with the world, again and again.
//!
//! ```text
//!            world changed, or check_every is over
//!   Agrees ───────────────────────────────────────▶ Pass: held ─▶ plan ─▶ remove, add ─▶ held ─▶ …
//!     ▲                                              │   │
//!     └───────────────── nothing left to do ─────────┘   └── trouble: pause (doubling, at most LONGEST), then again
//! ```
//!
//! A model that leaves while a pass is under way interrupts it: goodbyes never wait behind what is slow.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::entry::{Entry, Row};
use super::plan::{Held, Plan, Scope};
use super::{Foreign, Settings, Trouble};

/// The first pause after trouble, doubled with each further one.
const FIRST: Duration = Duration::from_millis(200);
/// And the longest.
const LONGEST: Duration = Duration::from_secs(15);
/// Between two looks at what a catalog does in its own time.
const LOOK: Duration = Duration::from_millis(20);
/// Requests to one catalog at once.
const AT_ONCE: usize = 8;

/// What should be in the catalogs.
#[derive(Debug, Default)]
pub struct World {
    /// Counts up with each change; 0: nothing is known yet, and nothing is done.
    pub revision: u64,
    /// By generation.
    pub entries: BTreeMap<String, Arc<Entry>>,
    /// The nodes of which all is known.
    pub nodes: BTreeSet<String>,
    /// Slurm's ClusterName; nothing is done before it is known, because whose an entry is could not be told.
    pub cluster: Option<String>,
}

impl World {
    /// The one that follows, if it differs.
    pub fn next(&self, entries: Vec<Entry>, nodes: impl IntoIterator<Item = String>) -> Option<Self> {
        let entries: BTreeMap<_, _> = entries
            .into_iter()
            .map(|entry| (entry.generation.clone(), Arc::new(entry)))
            .collect();
        let nodes = nodes.into_iter().collect();
        if self.revision > 0 && entries == self.entries && nodes == self.nodes {
            return None;
        }
        Some(Self {
            revision: self.revision + 1,
            entries,
            nodes,
            cluster: self.cluster.clone(),
        })
    }

    /// Is something of `before` gone?
    fn lacks(&self, before: &Self) -> bool {
        before.entries.keys().any(|it| !self.entries.contains_key(it))
    }
}

/// How far a catalog is.
#[derive(Debug, Clone, Default)]
pub struct Agreed {
    /// It agrees with this one.
    pub revision: u64,
    /// And has since then.
    pub since: Option<Instant>,
    /// Why it does not agree with what came later, in one line; empty: nothing is wrong.
    pub trouble: String,
}

/// Keeps one catalog.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    foreign: Arc<dyn Foreign>,
    /// What it held when it was asked last: enough for a goodbye at once.
    remembered: Option<Vec<Held>>,
    /// Said last, so that the log has it once.
    said: String,
}

impl Keeper {
    /// Of that catalog.
    pub fn new(settings: Settings, foreign: Arc<dyn Foreign>) -> Self {
        Self {
            settings,
            foreign,
            remembered: None,
            said: String::new(),
        }
    }

    /// Follows the world until it ends. `done` is the revision that the catalog agrees with.
    pub async fn keep(mut self, mut world: watch::Receiver<Arc<World>>, done: watch::Sender<Agreed>) {
        let mut pause = FIRST;
        let mut beat = Instant::now();
        loop {
            let target = world.borrow_and_update().clone();
            let (true, Some(cluster)) = (target.revision > 0, target.cluster.clone()) else {
                match world.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            };
            let passed = tokio::select! {
                passed = self.pass(&target, &cluster) => Some(passed),
                () = goodbye(&mut world, &target) => None,
            };
            let wait = match passed {
                None => continue,
                Some(Ok(changed)) => {
                    if changed || !self.said.is_empty() {
                        tracing::info!(
                            "catalog {}: agrees, {} models",
                            self.settings.name,
                            target.entries.len()
                        );
                    }
                    self.said.clear();
                    done.send_if_modified(|agreed| {
                        let is_new = agreed.revision < target.revision;
                        if is_new {
                            *agreed = Agreed {
                                revision: target.revision,
                                since: Some(Instant::now()),
                                trouble: String::new(),
                            };
                        }
                        is_new || !std::mem::take(&mut agreed.trouble).is_empty()
                    });
                    pause = FIRST;
                    if let Some(every) = self.settings.heartbeat()
                        && beat.elapsed() >= every
                    {
                        beat = Instant::now();
                        self.beat(&target, &cluster).await;
                    }
                    self.settings.rest()
                }
                Some(Err(trouble)) => {
                    let text = self.say(&trouble, &target);
                    done.send_modify(|agreed| agreed.trouble = text);
                    self.remembered = None;
                    let wait = pause.mul_f64(rand::random_range(0.5..=1.0));
                    pause = (pause * 2).min(LONGEST).min(self.settings.check_every);
                    wait
                }
            };
            // A change that came meanwhile was seen by who waits for goodbyes.
            if world.borrow().revision != target.revision {
                continue;
            }
            tokio::select! {
                changed = world.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// An answer may repeat what it was told, keys among it.
    fn say(&mut self, trouble: &Trouble, world: &World) -> String {
        let keys = world
            .entries
            .values()
            .map(|entry| entry.key.as_str())
            .filter(|key| !key.is_empty());
        let text = keys.fold(trouble.to_string(), |text, key| text.replace(key, "KEY"));
        if text != self.said {
            tracing::warn!("catalog {}: {text}; it is tried again", self.settings.name);
            self.said.clone_from(&text);
        }
        text
    }

    /// Until the catalog agrees; whether anything had to be done.
    async fn pass(&mut self, world: &World, cluster: &str) -> Result<bool, Trouble> {
        let wanted = self.wanted(world, cluster);
        let scope = Scope {
            cluster: cluster.to_owned(),
            nodes: world.nodes.clone(),
        };
        // What has to go, goes by what is remembered; then it is seen to have gone.
        let remembered = self.remembered.take().unwrap_or_default();
        let goodbyes = Plan::make(&wanted, &remembered, &scope).remove;
        let mut asked: BTreeSet<String> = goodbyes.iter().map(|held| held.at.clone()).collect();
        let mut changed = !goodbyes.is_empty();
        self.remove(&goodbyes).await?;
        if changed {
            self.foreign.flush().await?;
        }
        let until = Instant::now() + self.settings.agree_within();
        loop {
            let held = self.foreign.held().await?;
            let plan = Plan::make(&wanted, &held, &scope);
            if plan.is_empty() {
                self.remembered = Some(held);
                return Ok(changed);
            }
            if changed && Instant::now() >= until {
                return Err(left(&plan));
            }
            changed = true;
            let remove: Vec<Held> = plan
                .remove
                .iter()
                .filter(|it| asked.insert(it.at.clone()))
                .cloned()
                .collect();
            // A row takes the place of one that is not gone yet.
            let add: Vec<Row> = match plan.remove.is_empty() {
                true => plan
                    .add
                    .iter()
                    .filter(|it| asked.insert(format!("+{}", it.id)))
                    .cloned()
                    .collect(),
                false => Vec::new(),
            };
            self.remove(&remove).await?;
            self.add(&add).await?;
            if remove.is_empty() && add.is_empty() {
                tokio::time::sleep(LOOK).await;
            } else {
                self.foreign.flush().await?;
            }
        }
    }

    fn wanted(&self, world: &World, cluster: &str) -> BTreeMap<String, Row> {
        let rows = world.entries.values().flat_map(|entry| {
            let mut entry = entry.clone();
            // A job whose prolog was missed knows no cluster.
            if entry.cluster != cluster {
                cluster.clone_into(&mut Arc::make_mut(&mut entry).cluster);
            }
            self.foreign.rows(&entry)
        });
        rows.map(|row| (row.id.clone(), row)).collect()
    }

    async fn remove(&self, all: &[Held]) -> Result<(), Trouble> {
        all_of(all.iter().map(|held| self.foreign.remove(held)).collect()).await
    }

    async fn add(&self, all: &[Row]) -> Result<(), Trouble> {
        all_of(all.iter().map(|row| self.foreign.add(row)).collect()).await
    }

    async fn beat(&mut self, world: &World, cluster: &str) {
        let rows: Vec<Row> = self.wanted(world, cluster).into_values().collect();
        let beats = rows.iter().map(|row| self.foreign.heartbeat(row)).collect();
        if let Err(trouble) = all_of(beats).await {
            self.say(&trouble, world);
        }
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Trouble>> + Send + 'a>>;

/// Some at a time, all of them; the first trouble is told.
async fn all_of(calls: Vec<Call<'_>>) -> Result<(), Trouble> {
    let done: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().collect()
}

fn left(plan: &Plan) -> Trouble {
    match (plan.remove.first(), plan.add.first()) {
        (Some(held), _) => Trouble::Disagrees(format!("it still lists {} ({})", held.name, held.id)),
        (None, Some(row)) => Trouble::Disagrees(format!(
            "it does not list {} ({}), which it took",
            row.name, row.id
        )),
        (None, None) => Trouble::Disagrees("it differs".into()),
    }
}

/// Resolves once something of `target` is to go.
async fn goodbye(world: &mut watch::Receiver<Arc<World>>, target: &World) {
    loop {
        if world.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if world.borrow().lacks(target) {
            return;
        }
    }
}
