//! One runner under test: its order, its process, and what must be gone after it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_serve_proto::v1::{LaunchOrder, RunnerPhase};
use tokio::sync::watch;

use crate::agent::{Agent, Manners, NONCE, Told};

pub const KEY: &str = "sk-test-0123456789abcdef";
pub const MODEL: &str = "ada/tiny";

/// What a test asks for.
pub struct Wish {
    pub stub: Vec<(&'static str, String)>,
    pub recipe: String,
    pub engine: String,
    pub order: LaunchOrder,
    pub releases: bool,
    pub has_port: bool,
    pub environment: Vec<(&'static str, String)>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            stub: Vec::new(),
            recipe: String::new(),
            engine: format!("command = [{:?}, \"serve\"]", stub_engine()),
            order: LaunchOrder {
                public_name: MODEL.into(),
                aliases: vec!["tiny".into()],
                key: KEY.into(),
                internal_port: 18_200,
                internal_port_count: 40,
                end_budget_ms: 12_000,
                job_id: 7,
                ..LaunchOrder::default()
            },
            releases: true,
            has_port: true,
            environment: Vec::new(),
        }
    }
}

impl Wish {
    /// A stub with this script.
    pub fn stub(script: &[(&'static str, &str)]) -> Self {
        Self {
            stub: script
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            ..Self::default()
        }
    }
}

/// A running runner and its agent.
pub struct Run {
    pub agent: Option<Agent>,
    pub manners: Manners,
    pub told: watch::Sender<Told>,
    pub folder: tempfile::TempDir,
    child: Child,
}

impl Run {
    pub fn start(wish: Wish) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("step-test-")
            .tempdir_in("/tmp")
            .expect("a folder");
        let scratch = folder.path().join("scratch");
        let logs = folder.path().join("logs");
        std::fs::create_dir(&scratch).expect("made");
        std::fs::create_dir(&logs).expect("made");
        let env: BTreeMap<_, _> = wish.stub.iter().cloned().collect();
        let env: Vec<String> = env
            .iter()
            .map(|(name, value)| format!("{name} = {value:?}"))
            .collect();
        let mut recipe = wish.recipe.clone();
        let defaults = [
            ("name", "\"tiny\""),
            ("source", "\"org/tiny\""),
            ("gpus", "0"),
            // Most tests are of one end; those of another attempt say so.
            ("restart", "\"never\""),
        ];
        for (key, default) in defaults {
            if !recipe.lines().any(|line| line.starts_with(&format!("{key} "))) {
                recipe.push_str(&format!("\n{key} = {default}"));
            }
        }
        let recipe = format!("{recipe}\n[engine]\n{}\n[env]\n{}\n", wish.engine, env.join("\n"));
        let mut order = wish.order;
        order.recipe = recipe;
        if order.scratch_dir.is_empty() {
            order.scratch_dir = scratch.display().to_string();
        }
        if order.log_dirs.is_empty() {
            order.log_dirs = vec![logs.display().to_string()];
        }
        let manners = Manners {
            order,
            releases: wish.releases,
            refuses: None,
            has_port: wish.has_port,
        };
        let socket = folder.path().join("agent.sock");
        let told = watch::Sender::new(Told::default());
        let agent = Agent::start(&socket, manners.clone(), &told);
        let child = start_runner(&socket, &wish.environment);
        Self {
            agent: Some(agent),
            manners,
            told,
            folder,
            child,
        }
    }

    /// Up to READY.
    pub async fn ready(wish: Wish) -> Self {
        let run = Self::start(wish);
        run.agent().until_phase(RunnerPhase::Ready).await;
        run
    }

    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent")
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("signalled");
    }

    pub fn engine_pid(&self) -> i32 {
        self.told.borrow().last().engine_pid as i32
    }

    /// Where the guard answers.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.told.borrow().last().port)
    }

    /// The engine's own socket, to ask it behind the guard's back.
    pub fn engine_socket(&self) -> PathBuf {
        let scratch = self.folder.path().join("scratch");
        let mut entries = std::fs::read_dir(scratch).expect("scratch");
        entries
            .next()
            .expect("the private folder")
            .expect("an entry")
            .path()
            .join("s")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("logs/serve-7.log")).unwrap_or_default()
    }

    /// Waits for the runner's end.
    pub async fn exit(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status;
            }
            assert!(Instant::now() < end, "the runner does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ended, and nothing is left of it: no process, no folder, no port.
    pub async fn gone(&mut self) -> ExitStatus {
        let status = self.exit().await;
        let (engine, port) = (self.engine_pid(), self.told.borrow().last().port);
        if engine != 0 {
            assert_eq!(
                session(engine),
                Vec::<i32>::new(),
                "processes of the engine's session"
            );
        }
        let scratch = self.folder.path().join("scratch");
        assert_eq!(
            std::fs::read_dir(scratch).expect("scratch").count(),
            0,
            "the private folder"
        );
        if port != 0 {
            std::net::TcpListener::bind(("127.0.0.1", port as u16)).expect("the port is free again");
        }
        status
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let engine = self.engine_pid();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if engine > 1 {
            for pid in session(engine) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// Starts `slurm-serve step` as srun would.
pub fn start_runner(socket: &Path, environment: &[(&'static str, String)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_slurm-serve"))
        .arg("step")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_STEP_ID", "0")
        .env("SLURM_SERVE_SOCKET", socket)
        .env("SLURM_SERVE_GENERATION", "7.0.1-abc")
        .env("SLURM_SERVE_NONCE", NONCE)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .spawn()
        .expect("slurm-serve step")
}

/// Live processes of a session.
pub fn session(id: i32) -> Vec<i32> {
    let stat = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        stat(*pid).is_some_and(|stat| {
            let fields: Vec<&str> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
            fields[0] != "Z" && fields[3] == id.to_string()
        })
    })
    .collect()
}

/// The stub engine, built if it is not.
pub fn stub_engine() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "serve-stub-engine"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo");
        assert!(status.success(), "the stub engine builds");
        Path::new(env!("CARGO_BIN_EXE_slurm-serve")).with_file_name("stub-engine")
    })
}

/// Asks the stub behind the guard's back.
pub async fn ask_stub(socket: &Path, path: &str) -> String {
    exchange(socket, "GET", path, "").await
}

/// Tells the stub what to do, likewise.
pub async fn tell_stub(socket: &Path, path: &str, what: &str) -> String {
    exchange(socket, "POST", path, what).await
}

async fn exchange(socket: &Path, method: &str, path: &str, body: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = tokio::net::UnixStream::connect(socket)
        .await
        .expect("the stub listens");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer
}

/// Waits for a condition.
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(Instant::now() < end, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
