//! An agent that does what a test tells it to: the plugin's side of the contract, without an engine.
#![allow(dead_code)] // Each test program uses a part of it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slurm_serve_proto::v1::hooks_server::{Hooks, HooksServer};
use slurm_serve_proto::v1::jobs_server::{Jobs, JobsServer};
use slurm_serve_proto::v1::*;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// What the agent knows and has heard. Shared by an agent and the one that replaces it after a "restart".
#[derive(Clone)]
pub struct Books {
    model: watch::Sender<Told>,
    heard: Arc<Mutex<Heard>>,
}

/// What the plugin is told.
#[derive(Clone, Default)]
pub struct Told {
    pub revision: u64,
    pub model: Option<Model>,
    pub job_ending: bool,
    /// The answer to OpenModel, but for `launch`, which is true until somebody launched.
    pub open: OpenModelResponse,
    pub refusal: Option<Status>,
}

/// What the plugin has said.
#[derive(Debug, Default)]
pub struct Heard {
    pub started: Vec<JobStartedRequest>,
    pub opened: Vec<OpenModelRequest>,
    pub launched: Vec<LaunchModelRequest>,
    pub awaited: u64,
    pub ending: Vec<JobEndingRequest>,
    pub ended: Vec<JobEndedRequest>,
}

impl Books {
    /// A job with no model yet, whose recipe wants `wanted_env`.
    pub fn new(wanted_env: &[&str]) -> Self {
        let open = OpenModelResponse {
            launch: false,
            wanted_env: wanted_env.iter().map(|name| (*name).to_owned()).collect(),
            wait_for_ready: true,
            ready_timeout_s: 60,
        };
        Self {
            model: watch::Sender::new(Told {
                revision: 1,
                open,
                ..Told::default()
            }),
            heard: Arc::default(),
        }
    }

    /// Changes what the plugin is told; whoever waits hears of it at once.
    pub fn tell(&self, change: impl FnOnce(&mut Told)) {
        self.model.send_modify(|told| {
            change(told);
            told.revision += 1;
        });
    }

    /// The model is now in `state`.
    pub fn state(&self, state: ModelState, progress: &str) {
        self.model(Model {
            state: state.into(),
            progress: progress.into(),
            ..Model::default()
        });
    }

    /// The model has failed.
    pub fn failed(&self, text: &str, hint: &str, log_path: &str) {
        self.model(Model {
            state: ModelState::Failed.into(),
            ending: Some(Ending {
                text: text.into(),
                hint: hint.into(),
                log_path: log_path.into(),
                ..Ending::default()
            }),
            ..Model::default()
        });
    }

    fn model(&self, model: Model) {
        let has_port = model.state() as i32 >= ModelState::Loading as i32;
        let model = Model {
            name: "tiny".into(),
            node: "n1".into(),
            base_url: if has_port {
                "http://n1:18100/v1".into()
            } else {
                String::new()
            },
            key: "sk-job".into(),
            ..model
        };
        self.tell(|told| told.model = Some(model));
    }

    /// What the plugin has said so far.
    pub fn heard<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap())
    }

    /// Blocks until the plugin has said something.
    pub fn until(&self, what: &str, said: impl Fn(&Heard) -> bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !self.heard(&said) {
            assert!(std::time::Instant::now() < deadline, "the plugin never {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn hear<T>(&self, note: impl FnOnce(&mut Heard) -> T) -> T {
        note(&mut self.heard.lock().unwrap())
    }
}

/// A running agent; dropping it closes every connection at once, as a crash would.
pub struct Running(#[allow(dead_code)] Runtime);

/// Serves `books` on `socket`, which anyone may use.
pub fn serve(socket: &Path, books: Books) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let _ = std::fs::remove_file(socket);
    let _inside = runtime.enter();
    let listener = UnixListener::bind(socket).unwrap();
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(HooksServer::new(books.clone()))
            .add_service(JobsServer::new(books))
            .serve_with_incoming(UnixListenerStream::new(listener)),
    );
    drop(_inside);
    Running(runtime)
}

#[tonic::async_trait]
impl Hooks for Books {
    async fn job_started(
        &self,
        request: Request<JobStartedRequest>,
    ) -> Result<Response<JobStartedResponse>, Status> {
        self.hear(|heard| heard.started.push(request.into_inner()));
        Ok(Response::new(JobStartedResponse {}))
    }

    async fn open_model(
        &self,
        request: Request<OpenModelRequest>,
    ) -> Result<Response<OpenModelResponse>, Status> {
        let told = self.model.borrow().clone();
        self.hear(|heard| heard.opened.push(request.into_inner()));
        if let Some(refusal) = told.refusal {
            return Err(refusal);
        }
        Ok(Response::new(OpenModelResponse {
            launch: self.heard(|heard| heard.launched.is_empty()),
            ..told.open
        }))
    }

    async fn launch_model(
        &self,
        request: Request<LaunchModelRequest>,
    ) -> Result<Response<LaunchModelResponse>, Status> {
        self.hear(|heard| heard.launched.push(request.into_inner()));
        Ok(Response::new(LaunchModelResponse {}))
    }

    async fn job_ending(
        &self,
        request: Request<JobEndingRequest>,
    ) -> Result<Response<JobEndingResponse>, Status> {
        self.hear(|heard| heard.ending.push(request.into_inner()));
        Ok(Response::new(JobEndingResponse {}))
    }

    async fn job_ended(
        &self,
        request: Request<JobEndedRequest>,
    ) -> Result<Response<JobEndedResponse>, Status> {
        self.hear(|heard| heard.ended.push(request.into_inner()));
        Ok(Response::new(JobEndedResponse {}))
    }
}

#[tonic::async_trait]
impl Jobs for Books {
    type StreamLogStream = tokio_stream::Empty<Result<LogChunk, Status>>;

    async fn get_model(&self, _: Request<GetModelRequest>) -> Result<Response<Model>, Status> {
        let model = self.model.borrow().model.clone();
        model
            .map(Response::new)
            .ok_or_else(|| Status::not_found("no model"))
    }

    async fn await_model(
        &self,
        request: Request<AwaitModelRequest>,
    ) -> Result<Response<AwaitModelResponse>, Status> {
        let request = request.into_inner();
        self.hear(|heard| heard.awaited += 1);
        let mut changes = self.model.subscribe();
        let changed = changes.wait_for(|told| told.revision != request.seen_revision);
        let _ = tokio::time::timeout(Duration::from_millis(request.wait_ms.into()), changed).await;
        let told = self.model.borrow().clone();
        Ok(Response::new(AwaitModelResponse {
            revision: told.revision,
            model: Some(
                told.model
                    .ok_or_else(|| Status::not_found("no model of this job"))?,
            ),
            job_ending: told.job_ending,
            note: String::new(),
        }))
    }

    async fn stream_log(
        &self,
        _: Request<StreamLogRequest>,
    ) -> Result<Response<Self::StreamLogStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn stop_model(&self, _: Request<StopModelRequest>) -> Result<Response<StopModelResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
