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
mod model_name;
mod models;
mod proxy;
mod push;
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
use crate::config::Config;
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
    keys: Option<keys::KeyFile>,
    upstream: upstream::Upstream,
    bodies: body::Budget,
    catalogs: push::Catalogs,
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

/// Runs the gateway until SIGTERM or SIGINT; requests in flight are finished first, for a bounded time.
pub async fn run(mut config: Config, args: GatewayArgs) -> anyhow::Result<()> {
    if let Some(listen) = args.listen {
        config.gateway.listen = listen;
    }
    if !args.agents.is_empty() {
        config.gateway.agents = args.agents;
    }
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?;
    let listen = &config.gateway.listen;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("gateway.listen: {listen} cannot be listened on"))?;
    crate::service_manager::ready();
    serve(config, listener, async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}

/// Serves on `listener` until `stop`.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let agents = discover::parse(&config.gateway.agents).map_err(anyhow::Error::msg)?;
    let keys = match config.gateway.key_file.as_path() {
        file if file == Path::new("") => None,
        file => Some(keys::KeyFile::open(file).map_err(anyhow::Error::msg)?),
    };
    let books = Arc::new(Books::new(Slurm::new(&config.agent), config.gateway.agent_port));
    let catalogs = Push::start(&config.catalogs, Kept::Gateway, &config.gateway.state_dir, books);
    let catalogs = catalogs.map_err(anyhow::Error::msg)?;
    let gateway = Arc::new(Gateway {
        registry: Shared::default(),
        changed: Notify::new(),
        keys,
        upstream: upstream::upstream(config.gateway.connect_timeout),
        bodies: body::Budget::default(),
        catalogs: push::Catalogs::new(catalogs),
    });
    let address = listener.local_addr().context("the listener has no address")?;
    tracing::info!("gateway: http://{address}/v1");
    if gateway.keys.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            "gateway: whoever reaches {address} may use every model; gateway.key_file asks for a key"
        );
    }
    let (cluster_name, slurm) = (config.agent.cluster_name.clone(), Slurm::new(&config.agent));
    let naming = async {
        if !gateway.catalogs.is_idle() {
            gateway.catalogs.know(&cluster(&cluster_name, &slurm).await);
        }
        std::future::pending::<()>().await;
    };
    let mut watchers = discover::Watchers::new(gateway.clone(), config);
    let serving = server::serve(listener, server::routes(gateway.clone()), stop);
    let watching = async move {
        if agents.is_empty() {
            watchers.follow_slurm().await;
        } else {
            watchers.set(&agents);
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = serving => Ok(()),
        () = naming => Ok(()),
        () = watching => anyhow::bail!("the watching of agents ended; this is a fault of slurm-serve"),
        () = forget(&gateway) => anyhow::bail!("the keeping of leases ended; this is a fault of slurm-serve"),
    }
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
