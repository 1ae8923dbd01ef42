//! The world that `sserve` sees: an agent on a Unix socket, and Slurm's commands as scripts that print files of the test's folder.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::Stream;
use slurm_serve_proto::v1::catalog_server::{Catalog, CatalogServer};
use slurm_serve_proto::v1::jobs_server::{Jobs, JobsServer};
use slurm_serve_proto::v1::telemetry_server::{Telemetry, TelemetryServer};
use slurm_serve_proto::v1::*;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// No step of a test takes longer, or it has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the fake agent knows.
#[derive(Debug, Default)]
pub struct Known {
    pub models: BTreeMap<u32, Model>,
    pub log: Vec<LogChunk>,
    pub job_ending: bool,
    /// Jobs whose model was asked to stop.
    pub stopped: Vec<u32>,
    /// `tail_lines` and `follow` of the last log that was asked for.
    pub asked_log: Option<(u32, bool)>,
    /// The node's last sample; without one, telemetry is turned off.
    pub sample: Option<NodeSample>,
    /// For how many seconds the driver was let go of; none once it was taken up again.
    pub quiet: Option<u32>,
    /// Every model's list is refused.
    pub refuse: bool,
}

#[derive(Clone)]
struct Agent {
    known: Arc<Mutex<Known>>,
    revision: watch::Sender<u64>,
}

/// A folder with a config, Slurm's commands, and, while it runs, an agent.
pub struct World {
    folder: tempfile::TempDir,
    agent: Agent,
    /// A runtime of its own, so that an end of the agent ends its connections too.
    server: Option<Runtime>,
}

/// What a run of `sserve` left.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    /// A world with a running agent on node n1 and a Slurm that knows this node alone.
    pub async fn new() -> Self {
        let mut world = Self::without_agent();
        world.start_agent().await;
        world
    }

    /// The same, and nothing listens on the agent's socket.
    pub fn without_agent() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("bin")).expect("bin");
        std::fs::create_dir_all(folder.path().join("jobs")).expect("jobs");
        let world = Self {
            folder,
            agent: Agent {
                known: Arc::default(),
                revision: watch::Sender::new(1),
            },
            server: None,
        };
        let dir = world.path("").display().to_string();
        world.script("sinfo", &format!("cat '{dir}/nodes'"));
        // squeue -h -a -t all -j JOB -o FORMAT
        world.script(
            "squeue",
            &format!(
                "cat '{dir}/jobs/'\"$6\" 2>/dev/null || {{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }}"
            ),
        );
        // scontrol show config; scontrol -o show node NAME; scontrol show hostnames LIST
        world.script(
            "scontrol",
            &format!(
                "case \"$*\" in 'show config') cat '{dir}/slurm.conf';; *'show node n1') echo NodeName=n1 Gres=gpu:2 State=IDLE;; \
                 *'show node '*) exit 1;; *) echo \"$3\" | sed 's/\\[\\([0-9]*\\).*/\\1/';; esac"
            ),
        );
        world.slurm_conf("");
        std::fs::write(world.path("nodes"), "n1 127.0.0.1\n").expect("nodes");
        world.configure("");
        world
    }

    /// Writes the config; `more` are further tables.
    pub fn configure(&self, more: &str) {
        let text = format!(
            "[agent]\nsocket = {:?}\nslurm_bin_dir = {:?}\nrecipes = {:?}\nnode_name = \"n1\"\nrecover_timeout = \"1s\"\n{more}\n",
            self.path("agent.sock"),
            self.path("bin"),
            self.path("models.d"),
        );
        std::fs::write(self.path("config.toml"), text).expect("config");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What `squeue` prints of a job: `JOBID|STATE|NODES|REASON`. By renaming, as the program may be reading.
    pub fn job(&self, job: &str, line: &str) {
        std::fs::write(self.path("jobs/.new"), format!("{line}\n")).expect("job");
        std::fs::rename(self.path("jobs/.new"), self.path("jobs").join(job)).expect("job");
    }

    /// What `scontrol show config` prints.
    pub fn slurm_conf(&self, text: &str) {
        std::fs::write(self.path("slurm.conf"), text).expect("slurm.conf");
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }

    pub async fn start_agent(&mut self) {
        let socket = self.path("agent.sock");
        let _ = std::fs::remove_file(&socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let agent = self.agent.clone();
        let listening =
            runtime.spawn(async move { tokio::net::UnixListener::bind(&socket).expect("a socket") });
        let listener = listening.await.expect("a listener");
        runtime.spawn(async move {
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
            let (_, health) = tonic_health::server::health_reporter();
            let server = tonic::transport::Server::builder()
                .add_service(health)
                .add_service(JobsServer::new(agent.clone()))
                .add_service(TelemetryServer::new(agent.clone()))
                .add_service(CatalogServer::new(agent));
            server.serve_with_incoming(incoming).await.expect("a server");
        });
        self.server = Some(runtime);
    }

    /// Ends the agent as SIGKILL would; its socket's file stays.
    pub async fn kill_agent(&mut self) {
        let server = self.server.take().expect("a running agent");
        let ended = tokio::task::spawn_blocking(move || server.shutdown_timeout(DEADLINE));
        ended.await.expect("an end");
    }

    /// Changes what the agent knows, and wakes whoever waits for news.
    pub fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.agent.known.lock().expect("known"));
        self.agent.revision.send_modify(|revision| *revision += 1);
    }

    /// Puts a model of job `job_id`, on node n1, of alice's.
    pub fn model(&self, job_id: u32, state: ModelState, change: impl FnOnce(&mut Model)) {
        let mut model = model(job_id, state);
        change(&mut model);
        self.change(|known| {
            known.models.insert(job_id, model);
        });
    }

    pub fn known<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.agent.known.lock().expect("known"))
    }

    /// `sserve` with this world's config, outside any job.
    pub fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_sserve"));
        command
            .arg("--config")
            .arg(self.path("config.toml"))
            .args(args)
            .env_remove("SLURM_JOB_ID")
            .env_remove("COLUMNS")
            .env("HOME", self.path("home"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub async fn run(&self, args: &[&str]) -> Outcome {
        Running::start(self.command(args)).end().await
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

/// A model of alice's that is served on n1.
pub fn model(job_id: u32, state: ModelState) -> Model {
    Model {
        name: "tiny".into(),
        recipe: "tiny".into(),
        owner: "alice".into(),
        owner_uid: 2001,
        node: "n1".into(),
        job_id,
        generation: format!("{job_id}.0.1-x"),
        state: state.into(),
        task: "chat".into(),
        base_url: "http://10.0.0.1:18100/v1".into(),
        published: true,
        key: "sk-of-the-job".into(),
        log_path: format!("/home/alice/serve-{job_id}.log"),
        ..Model::default()
    }
}

/// A run of `sserve` that is still going on.
pub struct Running {
    child: tokio::process::Child,
    stderr: BufReader<tokio::process::ChildStderr>,
    said: String,
}

impl Running {
    pub fn start(mut command: tokio::process::Command) -> Self {
        let mut child = command.spawn().expect("sserve starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr"));
        Self {
            child,
            stderr,
            said: String::new(),
        }
    }

    /// Waits until a line on stderr has `text` in it.
    pub async fn until_it_says(&mut self, text: &str) {
        let reading = async {
            loop {
                let mut line = String::new();
                let read = self.stderr.read_line(&mut line).await.expect("stderr");
                self.said += &line;
                assert!(
                    read > 0,
                    "it ended without saying {text:?}; it said {:?}",
                    self.said
                );
                if line.contains(text) {
                    return;
                }
            }
        };
        tokio::time::timeout(DEADLINE, reading)
            .await
            .expect("it says so in time");
    }

    /// Waits until a line comes on stdout, and gives it.
    pub async fn line(&mut self) -> String {
        let out = self.child.stdout.as_mut().expect("stdout");
        let reading = async {
            let mut line = Vec::new();
            loop {
                let byte = out.read_u8().await.expect("a whole line");
                if byte == b'\n' {
                    return String::from_utf8_lossy(&line).into_owned();
                }
                line.push(byte);
            }
        };
        tokio::time::timeout(DEADLINE, reading)
            .await
            .expect("a line in time")
    }

    pub fn terminate(&self) {
        let pid = self.child.id().expect("still running").try_into().expect("a pid");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM).expect("kill");
    }

    /// Waits for its end.
    pub async fn end(mut self) -> Outcome {
        let mut stdout = String::new();
        let ending = async {
            let out = self.child.stdout.as_mut().expect("stdout");
            let both = tokio::join!(
                out.read_to_string(&mut stdout),
                self.stderr.read_to_string(&mut self.said)
            );
            both.0.and(both.1).expect("output");
            self.child.wait().await.expect("an exit")
        };
        let status = tokio::time::timeout(DEADLINE, ending)
            .await
            .expect("it ends in time");
        Outcome {
            code: status.code().unwrap_or(-1),
            stdout,
            stderr: self.said,
        }
    }
}

impl Outcome {
    /// Asserts a bad end with one line on stderr that holds all `parts`.
    #[track_caller]
    pub fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("sserve: "), "{self:?}");
        for part in parts {
            assert!(last.contains(part), "{part:?} is not in {last:?}");
        }
    }

    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// No terminal may be told anything by what others wrote.
#[track_caller]
pub fn assert_plain(text: &str) {
    let bad: Vec<char> = text.chars().filter(|c| c.is_control() && *c != '\n').collect();
    assert!(bad.is_empty(), "{bad:?} in {text:?}");
}

impl Agent {
    fn get(&self, job_id: u32) -> Result<Model, Status> {
        let known = self.known.lock().expect("known");
        let model = known.models.get(&job_id).cloned();
        model.ok_or_else(|| Status::not_found(format!("no model of job {job_id}")))
    }
}

#[tonic::async_trait]
impl Jobs for Agent {
    async fn get_model(&self, request: Request<GetModelRequest>) -> Result<Response<Model>, Status> {
        self.get(request.get_ref().job_id).map(Response::new)
    }

    async fn await_model(
        &self,
        request: Request<AwaitModelRequest>,
    ) -> Result<Response<AwaitModelResponse>, Status> {
        let asked = request.get_ref();
        let mut revision = self.revision.subscribe();
        let news = revision.wait_for(|now| *now != asked.seen_revision);
        let _ = tokio::time::timeout(Duration::from_millis(asked.wait_ms.into()), news).await;
        let revision = *self.revision.borrow();
        let job_ending = self.known.lock().expect("known").job_ending;
        Ok(Response::new(AwaitModelResponse {
            revision,
            model: Some(self.get(asked.job_id)?),
            job_ending,
            note: String::new(),
        }))
    }

    type StreamLogStream = Pin<Box<dyn Stream<Item = Result<LogChunk, Status>> + Send>>;

    async fn stream_log(
        &self,
        request: Request<StreamLogRequest>,
    ) -> Result<Response<Self::StreamLogStream>, Status> {
        let asked = *request.get_ref();
        let model = self.get(asked.job_id)?;
        let agent = self.clone();
        self.known.lock().expect("known").asked_log = Some((asked.tail_lines, asked.follow));
        let first = (agent, 0, asked.follow && model.state() == ModelState::Ready);
        let stream = futures_util::stream::unfold(first, move |(agent, at, follow)| async move {
            let mut revision = agent.revision.subscribe();
            loop {
                revision.mark_unchanged();
                let next = agent.known.lock().expect("known").log.get(at).cloned();
                if let Some(chunk) = next {
                    return Some((Ok(chunk), (agent, at + 1, follow)));
                }
                let over = agent
                    .get(asked.job_id)
                    .map_or(true, |model| model.state() >= ModelState::Ended);
                if !follow || over {
                    return None;
                }
                revision.changed().await.ok()?;
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn stop_model(
        &self,
        request: Request<StopModelRequest>,
    ) -> Result<Response<StopModelResponse>, Status> {
        let job_id = request.get_ref().job_id;
        self.get(job_id)?;
        self.known.lock().expect("known").stopped.push(job_id);
        self.revision.send_modify(|revision| *revision += 1);
        Ok(Response::new(StopModelResponse {}))
    }
}

#[tonic::async_trait]
impl Catalog for Agent {
    async fn list_models(
        &self,
        request: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let known = self.known.lock().expect("known");
        if known.refuse {
            return Err(Status::permission_denied("you lack the role read"));
        }
        let ended = request.get_ref().include_ended;
        let models = known
            .models
            .values()
            .filter(|model| ended || model.state() < ModelState::Ended);
        Ok(Response::new(ListModelsResponse {
            node: "n1".into(),
            models: models.cloned().collect(),
            agent_version: env!("CARGO_PKG_VERSION").into(),
        }))
    }

    type WatchModelsStream = Pin<Box<dyn Stream<Item = Result<WatchModelsResponse, Status>> + Send>>;

    async fn watch_models(
        &self,
        _request: Request<tonic::Streaming<WatchModelsRequest>>,
    ) -> Result<Response<Self::WatchModelsStream>, Status> {
        Err(Status::unimplemented("sserve watches nothing"))
    }
}

#[tonic::async_trait]
impl Telemetry for Agent {
    type SampleTelemetryStream = Pin<Box<dyn Stream<Item = Result<NodeSample, Status>> + Send>>;

    async fn sample_telemetry(
        &self,
        _request: Request<SampleTelemetryRequest>,
    ) -> Result<Response<Self::SampleTelemetryStream>, Status> {
        let sample = self.known.lock().expect("known").sample.clone();
        let sample = sample.ok_or_else(|| Status::failed_precondition("telemetry is turned off here"))?;
        let next = futures_util::stream::pending();
        let stream = futures_util::StreamExt::chain(futures_util::stream::iter([Ok(sample)]), next);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn quiesce(&self, request: Request<QuiesceRequest>) -> Result<Response<QuiesceResponse>, Status> {
        let mut known = self.known.lock().expect("known");
        if known.refuse {
            return Err(Status::permission_denied("role `admin` is needed"));
        }
        known.quiet = Some(request.get_ref().for_s);
        Ok(Response::new(QuiesceResponse {}))
    }

    async fn resume(&self, _request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        self.known.lock().expect("known").quiet = None;
        Ok(Response::new(ResumeResponse {}))
    }
}
