//! A stand-in for an agent: the `Catalog` service on a Unix socket, saying what a test tells it to.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slurm_serve_proto::v1::catalog_server::{Catalog, CatalogServer};
use slurm_serve_proto::v1::watch_models_response::Event;
use slurm_serve_proto::v1::{
    Heartbeat, ListModelsRequest, ListModelsResponse, Model, ModelDelta, ModelSnapshot, ModelState,
    WatchModelsRequest, WatchModelsResponse,
};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::harness::in_time;

type Watcher = mpsc::Sender<Result<WatchModelsResponse, Status>>;

#[derive(Default)]
struct Said {
    revision: u64,
    models: Vec<Model>,
    watchers: Vec<Watcher>,
}

struct Speaker {
    node: String,
    life: u32,
    lease: Duration,
    /// Whether it says that it lives.
    beats: bool,
    said: Mutex<Said>,
    acked: watch::Sender<u64>,
}

/// One agent; dropped, it is gone like one that was killed.
pub struct FakeAgent {
    pub node: String,
    socket: PathBuf,
    speaker: Arc<Speaker>,
    /// A runtime of its own, so that the end of it is the end of every connection.
    runtime: Option<Runtime>,
    _folder: Option<tempfile::TempDir>,
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl FakeAgent {
    /// Starts one that knows `models`, with a lease of `lease`.
    pub fn start(node: &str, lease: Duration, models: Vec<Model>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let mut agent = Self::serve(node, socket, 1, lease, true, models);
        agent._folder = Some(folder);
        agent
    }

    /// Starts one that says its snapshot and then nothing more, as if the process were stopped.
    pub fn stopped(node: &str, lease: Duration, models: Vec<Model>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let mut agent = Self::serve(node, socket, 1, lease, false, models);
        agent._folder = Some(folder);
        agent
    }

    fn serve(
        node: &str,
        socket: PathBuf,
        life: u32,
        lease: Duration,
        beats: bool,
        models: Vec<Model>,
    ) -> Self {
        let speaker = Arc::new(Speaker {
            node: node.into(),
            life,
            lease,
            beats,
            said: Mutex::new(Said {
                revision: 100,
                models,
                ..Said::default()
            }),
            acked: watch::Sender::new(0),
        });
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = CatalogServer::from_arc(speaker.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            let router = tonic::transport::Server::builder().add_service(service);
            router.serve_with_incoming(incoming).await.unwrap();
        });
        Self {
            node: node.into(),
            socket,
            speaker,
            runtime: Some(runtime),
            _folder: None,
        }
    }

    /// As it is written in `gateway.agents`.
    pub fn address(&self) -> String {
        format!("{}=unix:{}", self.node, self.socket.display())
    }

    /// Says that models are new or changed, and others gone. Returns the revision.
    pub fn say(&self, upserted: Vec<Model>, removed: &[&str]) -> u64 {
        let mut said = self.speaker.said.lock().unwrap();
        said.revision += 1;
        let removed: Vec<String> = removed.iter().map(|g| (*g).to_owned()).collect();
        let outdated = |old: &Model| {
            removed.contains(&old.generation) || upserted.iter().any(|new| new.generation == old.generation)
        };
        said.models.retain(|old| !outdated(old));
        said.models.extend(upserted.clone());
        let delta = Event::Delta(ModelDelta { upserted, removed });
        let message = response(said.revision, delta);
        said.watchers
            .retain(|watcher| watcher.try_send(Ok(message.clone())).is_ok());
        said.revision
    }

    /// Waits until the gateway has acknowledged `revision`.
    pub async fn acknowledged(&self, revision: u64) {
        let mut acked = self.speaker.acked.subscribe();
        in_time("the acknowledgement", acked.wait_for(|acked| *acked >= revision))
            .await
            .unwrap();
    }

    /// Kills it: every connection breaks.
    pub fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
        std::fs::remove_file(&self.socket).unwrap();
    }

    /// Starts it again after [`FakeAgent::kill`], as another life.
    pub fn restart(&mut self, models: Vec<Model>) {
        let (life, lease) = (self.speaker.life + 1, self.speaker.lease);
        let mut again = Self::serve(&self.node, self.socket.clone(), life, lease, true, models);
        self.speaker = again.speaker.clone();
        self.runtime = again.runtime.take();
    }
}

fn response(revision: u64, event: Event) -> WatchModelsResponse {
    WatchModelsResponse {
        revision,
        event: Some(event),
    }
}

/// Heartbeats, until nobody listens. The gateway takes nothing from their revision, so the first one is as good as any.
async fn beat(watcher: Watcher, every: Duration, revision: u64) {
    loop {
        tokio::time::sleep(every).await;
        let message = response(revision, Event::Heartbeat(Heartbeat {}));
        if watcher.send(Ok(message)).await.is_err() {
            return;
        }
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
        let (sender, receiver) = mpsc::channel(64);
        let mut said = self.said.lock().unwrap();
        let snapshot = Event::Snapshot(ModelSnapshot {
            node: self.node.clone(),
            agent_instance: format!("life-{}", self.life),
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap(),
            models: said.models.clone(),
        });
        let _ = sender.try_send(Ok(response(said.revision, snapshot)));
        said.watchers.push(sender.clone());
        let acked = self.acked.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = acks.message().await {
                acked.send_replace(message.acked_revision);
            }
        });
        if self.beats {
            tokio::spawn(beat(sender, self.lease / 8, said.revision));
        }
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A published model of ada's in `state`, whose guard is at `base_url`, with the key `key-GENERATION`.
pub fn model(name: &str, generation: &str, state: ModelState, base_url: &str) -> Model {
    Model {
        name: name.into(),
        owner: "ada".into(),
        node: "n1".into(),
        cluster: "lab".into(),
        job_id: 7,
        generation: generation.into(),
        state: state.into(),
        state_since_ms: 1_000,
        base_url: base_url.into(),
        published: true,
        key: format!("key-{generation}"),
        progress: "the owner's alone".into(),
        log_path: "/home/ada/serve-7.log".into(),
        ..Model::default()
    }
}
