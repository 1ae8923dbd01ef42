//! `slurm-serve agent`: the resident agent of a node, put together.
//!
//! Settings, surroundings, the models of a former life, the listeners; then until SIGTERM or SIGINT. Models outlive the agent: their
//! runners are steps of their jobs, and come back to the next agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::catalog::Hub;
use crate::catalog::push::{self, Books, Kept, Push};
use crate::config::{self, Config};
use crate::job::Jobs;
use crate::kill_wait::{self, Wish};
use crate::peers::Peers;
use crate::rpc::{self, Rooms};
use crate::serve::{Confine, Models, Ports, Store, World};
use crate::slurm::Slurm;
use crate::telemetry::{self, Telemetry};

/// What `slurm-serve agent` takes.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Print every setting with its default and what it means, then exit.
    #[arg(long)]
    pub print_config: bool,
    /// Read the configuration, say whether it is in order, then exit (0: it is).
    #[arg(long)]
    pub check_config: bool,
}

/// Runs until it is told to end. The error is one line.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let slurm = Slurm::new(&config.agent);
    let node = config.agent.own_node();
    let address = address(&config.agent, &slurm, &node).await;
    let end_budget = end_budget(&slurm, &config.agent).await;
    let store = Store::open(&config.agent.state_dir, &config.agent.run_dir)?;
    let confine = confine(&config.agent, &node).await?;
    let world = Arc::new(World {
        confine,
        slurm,
        address,
        program: own_program()?,
        hub: Hub::new(config.agent.max_watchers),
        store,
        ports: Arc::new(Ports::new(&config.agent)),
        end_budget,
        config: config.agent.clone(),
        node,
    });
    let jobs = Arc::new(Jobs::default());
    let models = Models::new(world.clone(), jobs.clone());
    models.recover();
    let books = Arc::new(Books::new(world.slurm.clone(), config.gateway.agent_port));
    let push = Push::start(&config.catalogs, Kept::Agent, &config.agent.state_dir, books);
    let push = Arc::new(push.map_err(anyhow::Error::msg)?);
    if !push.is_idle() {
        tokio::spawn(tell_catalogs(push.clone(), models.clone()));
    }
    let peers = Arc::new(Peers::new(&world.node, &world.slurm, &config.agent));
    let counts = rpc::Counts::default();
    let place = telemetry::Place {
        node: world.node.clone(),
        cluster: cluster_name(&world),
        program: world.program.clone(),
        counts: counts.clone(),
        max_watchers: config.agent.max_watchers,
    };
    let telemetry = Telemetry::start(place, &config.telemetry);
    let rooms = Rooms {
        jobs,
        peers,
        telemetry,
        counts,
        models,
        instance: format!("{:016x}", rand::random::<u64>()).into(),
    };
    tracing::info!(
        node = world.node,
        address = world.address,
        socket = %config.agent.socket.display(),
        listen = config.agent.listen,
        tls = config.agent.tls.listen,
        end_budget_s = end_budget.as_secs(),
        "slurm-serve agent {}",
        env!("CARGO_PKG_VERSION")
    );

    let end = watch::Sender::new(false);
    let ended = || {
        let mut end = end.subscribe();
        async move {
            let _ = end.wait_for(|end| *end).await;
        }
    };
    let tcp = async {
        match config.agent.listen.as_str() {
            "" => {
                ended().await;
                Ok(())
            }
            listen => {
                let listener = rpc::bind_tcp("agent.listen", listen).await?;
                rpc::serve_tcp(rooms.clone(), listener, &config.access, ended()).await
            }
        }
    };
    let tls = async {
        let tls = &config.agent.tls;
        match tls.listen.as_str() {
            "" => {
                ended().await;
                Ok(())
            }
            listen => {
                let listener = rpc::bind_tcp("agent.tls.listen", listen).await?;
                rpc::serve_tls(rooms.clone(), listener, tls, &config.access, ended()).await
            }
        }
    };
    let unix = rpc::serve_unix(rooms.clone(), &config.agent.socket, ended());
    let ports = rpc::serve_ports(rooms.clone(), &config.agent.socket);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        result = async { tokio::try_join!(tcp, tls, unix, ports) } => result.map(|_| ()),
        _ = terminate.recv() => stop(),
        _ = interrupt.recv() => stop(),
    }
}

/// Streams are not waited for: whoever watches sees them break, keeps what it knows for the lease, and comes back.
fn stop() -> anyhow::Result<()> {
    tracing::info!("ending; models keep running, their runners come back to the next agent");
    Ok(())
}

/// Once the models of a former life are back: before, what is missing may only be late.
async fn tell_catalogs(push: Arc<Push>, models: Arc<Models>) {
    let world = models.world().clone();
    let (hub, node, patience) = (world.hub.clone(), world.node.clone(), world.config.settle_timeout);
    tokio::join!(
        async {
            push.know(&push::cluster(&world.config.cluster_name, &world.slurm).await);
        },
        async {
            models.recovered().await;
            push::follow(push.clone(), hub, node, patience).await;
        }
    );
}

/// ClusterName as soon as Slurm tells it; empty before.
fn cluster_name(world: &Arc<World>) -> watch::Receiver<String> {
    let (told, name) = watch::channel(world.config.cluster_name.clone());
    if name.borrow().is_empty() {
        let slurm = world.slurm.clone();
        tokio::spawn(async move { told.send_replace(push::cluster("", &slurm).await) });
    }
    name
}

/// What holds srun clients; says so if it is little.
async fn confine(config: &config::Agent, node: &str) -> anyhow::Result<Confine> {
    let (confine, short) = Confine::choose(config.srun_box, node)
        .await
        .map_err(|why| anyhow::anyhow!("agent.srun_box can't be had here: {why}; set it to \"auto\""))?;
    match short {
        Some(why) => tracing::warn!("srun clients are held by {}: {why}", confine.shown()),
        None => tracing::info!("srun clients are held by {}", confine.shown()),
    }
    Ok(confine)
}

/// Slurm's NodeAddr; a node that Slurm does not know, or a Slurm that does not answer, leaves the node's name.
async fn address(config: &config::Agent, slurm: &Slurm, node: &str) -> String {
    if !config.advertise_address.is_empty() {
        return config.advertise_address.clone();
    }
    match slurm.nodes().await {
        Ok(nodes) => match nodes.into_iter().find(|known| known.name == node) {
            Some(known) => return known.address,
            None => tracing::warn!(node, "Slurm knows no such node; set agent.node_name"),
        },
        Err(e) => tracing::warn!("{e}; models are announced as {node}"),
    }
    node.to_owned()
}

/// What of KillWait the end of a model may use; says so if that is too little for what is configured.
async fn end_budget(slurm: &Slurm, config: &config::Agent) -> Duration {
    let kill_wait = match slurm.kill_wait().await {
        Ok(kill_wait) => kill_wait,
        Err(e) => {
            tracing::warn!("{e}; KillWait is taken for {} s", kill_wait::USUAL.as_secs());
            return kill_wait::end_budget(kill_wait::USUAL);
        }
    };
    if let Some(line) = Wish::of(config).shortfall(kill_wait) {
        tracing::warn!("{line}");
    }
    kill_wait::end_budget(kill_wait)
}

/// This file, which becomes the step's one task. A binary that was replaced while we ran has " (deleted)" behind its name.
fn own_program() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("the path of this program")?;
    let text = path.to_string_lossy();
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or_else(|| path.clone(), PathBuf::from))
}
