//! The small proxy: OpenAI's API in front of every model that the agents serve.
//!
//! ```text
//!   discover ──▶ watch (one task a node) ──▶ registry ◀── router ◀── proxy ◀── clients
//!                   │  catalog::watcher         ▲
//!                   ▼                           └── models (lists)
//!                 agents (WatchModels)
//! ```
//!
//! It keeps nothing on disk: whatever it knows, the agents have said, and they say it again after a restart. The registry is
//! the only thing the parts share.

mod body;
mod discover;
mod errors;
mod keys;
mod metrics;
mod model_name;
mod models;
mod page;
mod proxy;
mod push;
mod record;
mod registry;
mod renew;
mod replica;
mod router;
mod server;
#[cfg(test)]
mod testing;
mod upstream;
mod watch;

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::catalog::push::{Books, Kept, Push, cluster};
use crate::config::{self, Config};
use crate::slurm::Slurm;

/// `slurm-serve gateway`
#[derive(Debug, Clone, Default, clap::Args)]
pub struct GatewayArgs {
    /// Where to listen, HOST:PORT, instead of gateway.listen of the configuration
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// An agent to watch, NODE=HOST:PORT or NODE=unix:/path, instead of gateway.agents; may be repeated
    #[arg(long = "agent", value_name = "NODE=ADDRESS")]
    pub agents: Vec<String>,
}

/// What the parts share.
struct Gateway {
    registry: Shared,
    /// Told of each change, for what must be dropped later.
    changed: Notify,
    /// What may change while it runs.
    changing: RwLock<Changing>,
    metrics: metrics::Metrics,
    upstream: upstream::Upstream,
    bodies: body::Budget,
    catalogs: push::Catalogs,
}

/// What a reload changes.
struct Changing {
    settings: Arc<config::Gateway>,
    keys: Option<Arc<keys::KeyFile>>,
}

impl Changing {
    /// The error is one line.
    fn open(settings: &config::Gateway) -> Result<Self, String> {
        let keys = match settings.key_file.as_path() {
            file if file == Path::new("") => None,
            file => Some(Arc::new(keys::KeyFile::open(file)?)),
        };
        Ok(Self {
            settings: Arc::new(settings.clone()),
            keys,
        })
    }
}

impl Gateway {
    fn settings(&self) -> Arc<config::Gateway> {
        self.changing().settings.clone()
    }

    fn keys(&self) -> Option<Arc<keys::KeyFile>> {
        self.changing().keys.clone()
    }

    fn changing(&self) -> RwLockReadGuard<'_, Changing> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registry behind its lock, which is never held across a wait.
#[derive(Default)]
struct Shared(RwLock<registry::Registry>);

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, registry::Registry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, registry::Registry> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the gateway until SIGTERM or SIGINT; requests in flight are finished first, for a bounded time. SIGHUP has it read its settings again, by
/// `again`.
pub async fn run(
    mut config: Config,
    args: GatewayArgs,
    again: impl Fn() -> Result<Config, String> + Send + 'static,
) -> anyhow::Result<()> {
    args.apply(&mut config);
    let (reloaded, news) = tokio::sync::watch::channel(config.clone());
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be waited for")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match again() {
                Ok(mut config) => {
                    args.apply(&mut config);
                    reloaded.send_replace(config);
                }
                Err(why) => tracing::error!("reload: {why}; everything stays as it was"),
            }
        }
    });
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?;
    let listen = &config.gateway.listen;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("gateway.listen: {listen} cannot be listened on"))?;
    crate::service_manager::ready();
    serve(news, listener, async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}

impl GatewayArgs {
    fn apply(&self, config: &mut Config) {
        if let Some(listen) = &self.listen {
            config.gateway.listen.clone_from(listen);
        }
        if !self.agents.is_empty() {
            config.gateway.agents.clone_from(&self.agents);
        }
    }
}

/// Serves on `listener` until `stop`, by the settings that `news` has, and what of later ones can change meanwhile.
pub async fn serve(
    mut news: tokio::sync::watch::Receiver<Config>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let config = news.borrow_and_update().clone();
    discover::parse(&config.gateway.agents).map_err(anyhow::Error::msg)?;
    let changing = Changing::open(&config.gateway).map_err(anyhow::Error::msg)?;
    let books = Arc::new(Books::new(Slurm::new(&config.agent), config.gateway.agent_port));
    let catalogs = Push::start(&config.catalogs, Kept::Gateway, &config.gateway.state_dir, books);
    let catalogs = catalogs.map_err(anyhow::Error::msg)?;
    let gateway = Arc::new(Gateway {
        registry: Shared::default(),
        changed: Notify::new(),
        changing: RwLock::new(changing),
        metrics: metrics::Metrics::default(),
        upstream: upstream::upstream(config.gateway.connect_timeout),
        bodies: body::Budget::default(),
        catalogs: push::Catalogs::new(catalogs),
    });
    let address = listener.local_addr().context("the listener has no address")?;
    tracing::info!("gateway: http://{address}/v1");
    if gateway.keys().is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            "gateway: whoever reaches {address} may use every model; gateway.key_file asks for a key"
        );
    }
    let (cluster_name, slurm) = (config.agent.cluster_name.clone(), Slurm::new(&config.agent));
    let reloading = gateway.clone();
    let naming = async {
        if !gateway.catalogs.is_idle() {
            gateway.catalogs.know(&cluster(&cluster_name, &slurm).await);
        }
        std::future::pending::<()>().await;
    };
    let mut watchers = discover::Watchers::new(gateway.clone(), config.clone());
    let serving = server::serve(listener, server::routes(gateway.clone()), stop);
    let watching = async move {
        let mut agents = discover::parse(&config.gateway.agents).unwrap_or_default();
        let mut config = config;
        loop {
            tokio::select! {
                () = watchers.follow(&agents) => {}
                next = next(&mut news) => match reload(&reloading, &config, &next) {
                    Ok(now) => (agents, config) = (now, next),
                    Err(why) => tracing::error!("reload: {why}; everything stays as it was"),
                }
            }
        }
    };
    tokio::select! {
        () = serving => Ok(()),
        () = naming => Ok(()),
        () = watching => Ok(()),
        () = forget(&gateway) => anyhow::bail!("the keeping of leases ended; this is a fault of slurm-serve"),
    }
}

async fn next(news: &mut tokio::sync::watch::Receiver<Config>) -> Config {
    if news.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    news.borrow_and_update().clone()
}

/// Takes over what can change while requests go by; the agents to watch from now on. The error is one line, and nothing has changed.
fn reload(gateway: &Gateway, before: &Config, after: &Config) -> Result<discover::Agents, String> {
    let agents = discover::parse(&after.gateway.agents)?;
    let changing = Changing::open(&after.gateway)?;
    *gateway.changing.write().unwrap_or_else(PoisonError::into_inner) = changing;
    let (old, new) = (&before.gateway, &after.gateway);
    for (name, differs) in [
        ("gateway.listen", old.listen != new.listen),
        ("gateway.open_metrics", old.open_metrics != new.open_metrics),
        ("gateway.state_dir", old.state_dir != new.state_dir),
        ("gateway.agent_port", old.agent_port != new.agent_port),
        (
            "gateway.discover_interval",
            old.discover_interval != new.discover_interval,
        ),
        (
            "gateway.connect_timeout",
            old.connect_timeout != new.connect_timeout,
        ),
        ("catalogs", before.catalogs != after.catalogs),
        ("client", before.client != after.client),
        ("agent", before.agent != after.agent),
    ] {
        if differs {
            tracing::warn!("reload: {name} has changed, which needs a restart of the gateway");
        }
    }
    tracing::info!("reload: done");
    Ok(agents)
}

/// Drops what may be believed no longer, when its time has come.
async fn forget(gateway: &Gateway) {
    loop {
        let now = registry::Now::read();
        let (ended, next) = gateway.registry.write().expire(now);
        gateway.catalogs.tell(&gateway.registry.read(), now);
        for node in ended {
            tracing::warn!(
                "agent of {node}: silent for longer than its lease; models whose guards are silent too are taken for gone"
            );
        }
        match next {
            Some(wait) => tokio::select! {
                () = gateway.changed.notified() => {}
                () = tokio::time::sleep(wait.max(std::time::Duration::from_millis(1))) => {}
            },
            None => gateway.changed.notified().await,
        }
    }
}
