//! One gateway and a thousand agents: real gRPC servers, all in this process, each with one model. How long until all models are listed, how soon a
//! change is seen, what that takes, and whether a restart of all agents, one after the other, drops any model from the list.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serve_lab::{Product, wait_for};
use slurm_serve_proto::v1::catalog_server::{Catalog, CatalogServer};
use slurm_serve_proto::v1::watch_models_response::Event;
use slurm_serve_proto::v1::{
    Heartbeat, ListModelsRequest, ListModelsResponse, Model, ModelDelta, ModelSnapshot, ModelState,
    WatchModelsRequest, WatchModelsResponse,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::agent::percent_of_a_core;
use crate::bed::Effort;
use crate::http::{Connection, get};
use crate::report::{Goal, Row};
use crate::stats::Samples;

const AGENTS: usize = 1000;
/// From one model's change to its being seen, in ms.
const SEEN: f64 = 100.0;

type Watcher = mpsc::Sender<Result<WatchModelsResponse, Status>>;

/// What one agent says.
#[derive(Debug)]
struct Speaker {
    node: String,
    said: Mutex<Said>,
}

#[derive(Debug)]
struct Said {
    life: u32,
    revision: u64,
    model: Model,
    watchers: Vec<Watcher>,
}

impl Speaker {
    fn new(number: usize, guard: SocketAddr) -> Arc<Self> {
        let node = format!("n{number:04}");
        let model = Model {
            name: format!("model-{number:04}"),
            owner: "ada".into(),
            node: node.clone(),
            job_id: u32::try_from(number).unwrap_or(0) + 1,
            generation: format!("{number}.0.1-a"),
            state: ModelState::Ready.into(),
            base_url: format!("http://{guard}/v1"),
            published: true,
            key: "key".into(),
            ..Model::default()
        };
        let said = Said {
            life: 1,
            revision: 100,
            model,
            watchers: Vec::new(),
        };
        Arc::new(Self {
            node,
            said: Mutex::new(said),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model is in this state from now on.
    fn change(&self, state: ModelState) {
        let mut said = self.lock();
        said.revision += 1;
        said.model.state = state.into();
        let delta = ModelDelta {
            upserted: vec![said.model.clone()],
            removed: Vec::new(),
        };
        let message = message(said.revision, Event::Delta(delta));
        said.watchers
            .retain(|watcher| watcher.try_send(Ok(message.clone())).is_ok());
    }

    /// Its streams break, as when it is killed; the next life says the same.
    fn restart(&self) {
        let mut said = self.lock();
        said.life += 1;
        said.watchers.clear();
    }
}

fn message(revision: u64, event: Event) -> WatchModelsResponse {
    WatchModelsResponse {
        revision,
        event: Some(event),
    }
}

#[tonic::async_trait]
impl Catalog for Speaker {
    type WatchModelsStream = ReceiverStream<Result<WatchModelsResponse, Status>>;

    async fn list_models(
        &self,
        _: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        Err(Status::unimplemented("the gateway watches"))
    }

    async fn watch_models(
        &self,
        request: Request<Streaming<WatchModelsRequest>>,
    ) -> Result<Response<Self::WatchModelsStream>, Status> {
        let mut acks = request.into_inner();
        let (sender, receiver) = mpsc::channel(16);
        let mut said = self.lock();
        let snapshot = ModelSnapshot {
            node: self.node.clone(),
            agent_instance: format!("life-{}", said.life),
            lease_ms: 10_000,
            models: vec![said.model.clone()],
        };
        let revision = said.revision;
        let _ = sender.try_send(Ok(message(revision, Event::Snapshot(snapshot))));
        said.watchers.push(sender.clone());
        let beats = sender.downgrade();
        tokio::spawn(async move { while let Ok(Some(_)) = acks.message().await {} });
        tokio::spawn(async move {
            // As often as the real one; a stream that was broken is not held open by its heart.
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                let Some(beats) = beats.upgrade() else { return };
                if beats
                    .send(Ok(message(revision, Event::Heartbeat(Heartbeat {}))))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The gateway as a process; ends with this.
struct Gateway {
    child: Child,
    address: SocketAddr,
}

impl Gateway {
    fn start(folder: &Path, agents: &[String]) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(listener);
        let config = folder.join("config.toml");
        let agents = serde_json::to_string(agents)?;
        std::fs::write(
            &config,
            format!("[gateway]\nlisten = \"{address}\"\nagents = {agents}\n"),
        )?;
        let child = Command::new(Product::locate()?.built.join("slurm-serve"))
            .arg("--config")
            .arg(&config)
            .arg("gateway")
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self { child, address })
    }

    fn listed(&self) -> Result<usize> {
        let (status, body) = Connection::here(self.address)?.ask(&get("/v1/models"))?;
        ensure!(status == 200, "{status} {body}");
        Ok(body.matches("\"id\":\"model-").count())
    }

    fn pid(&self) -> Result<i32> {
        Ok(self.child.id().try_into()?)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(runtime: &Runtime, speaker: Arc<Speaker>, socket: PathBuf) -> Result<()> {
    let _inside = runtime.enter();
    let listener = tokio::net::UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
    runtime.spawn(async move {
        let router = tonic::transport::Server::builder().add_service(CatalogServer::from_arc(speaker));
        router
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
    });
    Ok(())
}

/// Where all models' guards are: it is there, and says nothing. (One that refuses connections is a model that is gone.)
fn guard() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
    Ok(address)
}

/// Runs it.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let count = effort.rounds(AGENTS, 100);
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let guard = guard()?;
    let mut speakers = Vec::new();
    let mut agents = Vec::new();
    for number in 0..count {
        let (speaker, socket) = (
            Speaker::new(number, guard),
            folder.path().join(format!("{number}")),
        );
        agents.push(format!("{}=unix:{}", speaker.node, socket.display()));
        serve(&runtime, speaker.clone(), socket)?;
        speakers.push(speaker);
    }
    let begun = Instant::now();
    let gateway = Gateway::start(folder.path(), &agents)?;
    wait_for(Duration::from_secs(60), "all models to be listed", || {
        Ok((gateway.listed().unwrap_or(0) == count).then_some(()))
    })?;
    let listed = begun.elapsed().as_secs_f64() * 1000.0;

    let mut seen = Samples::default();
    for round in 0..effort.rounds(200, 30) {
        let speaker = &speakers[round % count];
        let name = format!("/v1/models/model-{:04}", round % count);
        let mut connection = Connection::here(gateway.address)?;
        for (state, wanted) in [(ModelState::Draining, false), (ModelState::Ready, true)] {
            let begun = Instant::now();
            speaker.change(state);
            while (connection.ask(&get(&name))?.0 == 200) != wanted {
                if begun.elapsed() > Duration::from_secs(10) {
                    bail!("a change was not seen");
                }
            }
            seen.push(vec![begun.elapsed().as_secs_f64() * 1000.0]);
        }
    }

    let idle = percent_of_a_core(
        gateway.pid()?,
        Duration::from_secs(if effort.quick { 2 } else { 10 }),
    )?;
    let begun = Instant::now();
    let mut fewest = count;
    for (number, speaker) in speakers.iter().enumerate() {
        speaker.restart();
        if number % 10 == 0 {
            fewest = fewest.min(gateway.listed()?);
        }
    }
    wait_for(Duration::from_secs(60), "every agent to be watched again", || {
        fewest = fewest.min(gateway.listed()?);
        Ok(speakers
            .iter()
            .all(|speaker| !speaker.lock().watchers.is_empty())
            .then_some(()))
    })?;
    let rolled = begun.elapsed().as_secs_f64() * 1000.0;
    let memory = crate::gateway::resident(gateway.pid()?)?;
    Ok(vec![
        Row::read(
            format!("start of the gateway → {count} models of {count} agents listed"),
            listed,
            "ms",
            Goal::None,
        ),
        Row::new(
            "a model changes → seen in the list, median",
            seen.quantile(0.5),
            "ms",
            Goal::AtMost(SEEN),
        ),
        Row::new(
            "a model changes → seen in the list, p99",
            seen.quantile(0.99),
            "ms",
            Goal::AtMost(SEEN),
        ),
        Row::read(
            format!("gateway: CPU, idle with {count} agents"),
            idle,
            "% of a core",
            Goal::None,
        ),
        Row::read(
            format!("gateway: resident memory with {count} agents"),
            memory,
            "MiB",
            Goal::None,
        ),
        Row::read(
            format!("all {count} agents restarted: until all are watched again"),
            rolled,
            "ms",
            Goal::None,
        ),
        Row::read(
            "all agents restarted: models missing from the list meanwhile",
            (count - fewest) as f64,
            "models",
            Goal::AtMost(0.0),
        ),
    ])
}
