//! Catalogs that are told over their own API: LiteLLM, routers, files that proxies read, webhooks.
//!
//! ```text
//!   what is ready here ──▶ World ──▶ keep (one task a catalog) ──plan──▶ Foreign: held / add / remove ──▶ the catalog
//!                            ▲            │
//!      hub or registry ──────┘            └─▶ done: the revision that the catalog agrees with, for whoever waits for a goodbye
//! ```
//!
//! Each catalog is made to agree with the world by reading back what it holds, never by trusting that it did what it said. It runs in
//! one of two places, the agents or the gateway process, as the configuration says for each catalog.

mod books;
mod entry;
mod file;
mod http;
mod journal;
mod keep;
mod litellm;
mod of_agent;
mod plan;
mod router;
pub mod settings;
mod sweep;
mod webhook;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use self::books::Books;
pub use self::entry::{Entry, Row};
pub use self::http::Trouble;
pub use self::keep::{Agreed, World};
pub use self::of_agent::{cluster, follow};
pub use self::plan::{Held, Scope};
pub use self::settings::{Kept, Settings};
pub use self::sweep::{Judgement, Slurm, look_twice};

/// A catalog: what it holds of ours, and how that is changed.
#[tonic::async_trait]
pub trait Foreign: Send + Sync + std::fmt::Debug {
    /// One row for each name under which this catalog lists the model.
    fn rows(&self, entry: &Arc<Entry>) -> Vec<Row>;

    /// All that is ours in it, of every node.
    async fn held(&self) -> Result<Vec<Held>, Trouble>;

    /// Enters a row that is not there.
    async fn add(&self, row: &Row) -> Result<(), Trouble>;

    /// Removes one that is there. One that is gone meanwhile is no error.
    async fn remove(&self, held: &Held) -> Result<(), Trouble>;

    /// What must be done for an entry although nothing changed, every [`Settings::heartbeat`].
    async fn heartbeat(&self, _row: &Row) -> Result<(), Trouble> {
        Ok(())
    }

    /// All changes of one pass were made; what is written at once is written now.
    async fn flush(&self) -> Result<(), Trouble> {
        Ok(())
    }
}

/// The catalog that `settings` describe. The error is one line.
pub fn open(settings: &Settings, state_dir: &Path) -> Result<Arc<dyn Foreign>, String> {
    let foreign: Result<Arc<dyn Foreign>, String> = match settings.kind {
        settings::Kind::Litellm => litellm::Litellm::open(settings, state_dir).map(|it| Arc::new(it) as _),
        settings::Kind::Router => router::Router::open(settings, state_dir).map(|it| Arc::new(it) as _),
        settings::Kind::File => file::Written::open(settings, state_dir).map(|it| Arc::new(it) as _),
        settings::Kind::Webhook => webhook::Webhook::open(settings, state_dir).map(|it| Arc::new(it) as _),
    };
    foreign.map_err(|why| format!("catalog {}: {why}", settings.name))
}

/// How a catalog is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Status {
    /// As configured.
    pub name: String,
    /// Which software, and where.
    pub place: String,
    /// Does it hold what it should?
    pub agrees: bool,
    /// Why not, in one line; empty while it is only being told.
    pub trouble: String,
}

/// Tells catalogs of the world, and knows how far they are.
#[derive(Debug)]
pub struct Push {
    world: watch::Sender<Arc<World>>,
    kept: Vec<One>,
}

#[derive(Debug)]
struct One {
    name: String,
    place: String,
    done: watch::Receiver<Agreed>,
    settle: Duration,
    task: tokio::task::JoinHandle<()>,
}

impl Push {
    /// Opens and keeps all catalogs of `settings` that are `kept` here.
    ///
    /// Whose entries ours are is Slurm's ClusterName, which [`Push::know`] brings; those of another cluster are never touched. In `state_dir` is
    /// remembered what catalogs were told that can't be read back.
    ///
    /// `books` are asked, now and then, whether what others entered is lost.
    pub fn start(
        settings: &[Settings],
        kept: Kept,
        state_dir: &Path,
        books: Arc<dyn Slurm>,
    ) -> Result<Self, String> {
        let world = watch::Sender::new(Arc::new(World::default()));
        let mut all = Vec::new();
        for settings in settings.iter().filter(|it| it.kept_by == kept) {
            let foreign = open(settings, state_dir)?;
            let (told, done) = watch::channel(Agreed::default());
            let sweeper = sweep::Sweeper {
                settings: settings.clone(),
                foreign: foreign.clone(),
                slurm: books.clone(),
            };
            let keeper = keep::Keeper::new(settings.clone(), foreign);
            let (keep, sweep) = (
                keeper.keep(world.subscribe(), told),
                sweeper.sweep(world.subscribe()),
            );
            let task = tokio::spawn(async move {
                tokio::join!(keep, sweep);
            });
            tracing::info!(
                "catalog {}: {} is kept from here",
                settings.name,
                settings.place()
            );
            all.push(One {
                name: settings.name.clone(),
                place: settings.place(),
                done,
                settle: settings.settle(),
                task,
            });
        }
        Ok(Self { world, kept: all })
    }

    /// Is any catalog kept here?
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whose the entries are.
    pub fn know(&self, cluster: &str) {
        self.world.send_modify(|world| {
            *world = Arc::new(World {
                revision: world.revision,
                entries: world.entries.clone(),
                nodes: world.nodes.clone(),
                cluster: Some(cluster.to_owned()),
            });
        });
    }

    /// The world is like this now. Returns the revision to wait for; a world that is as before gets none of its own.
    pub fn tell(&self, entries: Vec<Entry>, nodes: impl IntoIterator<Item = String>) -> u64 {
        let mut revision = 0;
        self.world.send_if_modified(|world| {
            let next = world.next(entries, nodes);
            let changed = next.is_some();
            if let Some(next) = next {
                *world = Arc::new(next);
            }
            revision = world.revision;
            changed
        });
        revision
    }

    /// How each catalog is.
    pub fn status(&self) -> Vec<Status> {
        let latest = self.world.borrow().revision;
        let status = |one: &One| {
            let agreed = one.done.borrow();
            Status {
                name: one.name.clone(),
                place: one.place.clone(),
                agrees: agreed.revision >= latest && agreed.trouble.is_empty(),
                trouble: agreed.trouble.clone(),
            }
        };
        self.kept.iter().map(status).collect()
    }

    /// Resolves once every catalog agrees with that revision, and whoever reads it has had time to notice. A catalog that is away is waited
    /// for by `patience` at most.
    pub async fn settled(&self, revision: u64, patience: Duration) {
        let all = self.kept.iter().map(|one| {
            let (mut done, settle) = (one.done.clone(), one.settle);
            async move {
                let agreed = async {
                    done.wait_for(|done| done.revision >= revision)
                        .await
                        .ok()
                        .and_then(|agreed| agreed.since)
                };
                let agreed = tokio::time::timeout(patience, agreed).await;
                if let Ok(Some(since)) = agreed {
                    tokio::time::sleep_until(since + settle).await;
                }
            }
        });
        futures_util::future::join_all(all).await;
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        for one in &self.kept {
            one.task.abort();
        }
    }
}
