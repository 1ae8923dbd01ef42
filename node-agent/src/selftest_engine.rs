//! `slurm-serve selftest-engine`: an engine without a model, for `sserve selftest` and for a first look at an installation. It takes vLLM's
//! place behind the guard, answers at once or as slowly as it is asked to, and what it answers is what it sees of its surroundings.
//!
//! No recipe of the admin's names it: it comes by [`RECIPE`], a user's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

/// The name behind `--serve-model=`.
pub const NAME: &str = "selftest";

/// Its recipe, for `~/.config/slurm-serve/models.d/selftest.toml`.
pub const RECIPE: &str = r#"# An engine without a model, from `sserve selftest --print-recipe`: for a look at an installation, not for work.
name = "selftest"
description = "answers what it sees of its surroundings"
source = "/"
gpus = 0
ready_timeout = "1m"
drain_timeout = "15s"

[engine]
command = ["slurm-serve", "selftest-engine"]
"#;

/// One token of an answer takes this long.
pub const TOKEN: Duration = Duration::from_millis(100);

/// What the runner gives to every engine, and nothing else.
#[derive(Debug, clap::Args)]
pub struct EngineArgs {
    /// What vLLM would load.
    source: String,
    /// What it is called.
    #[arg(long, num_args = 1..)]
    served_model_name: Vec<String>,
    /// Where it listens.
    #[arg(long)]
    uds: PathBuf,
    /// Seconds that requests in flight get once it is told to end.
    #[arg(long, default_value_t = 0)]
    shutdown_timeout: u64,
}

/// What a process sees of its surroundings; the job's script and the engine should see the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Itself, as this PID namespace numbers it.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// GPUs' device files that it may open (a stand-in without a driver counts as well), sorted.
    pub gpus: Vec<String>,
    /// GPUs' device files that it is refused, sorted.
    pub refused: Vec<String>,
    /// `/proc/self/cgroup`: controllers and paths.
    pub cgroups: BTreeMap<String, String>,
    /// A process that it started in a session of its own; nothing but Slurm would find it if the runner were killed.
    pub child: Option<u32>,
}

impl Facts {
    /// Of this process.
    pub fn here() -> Self {
        let mut facts = Self {
            pid: std::process::id(),
            uid: nix::unistd::getuid().as_raw(),
            gpus: Vec::new(),
            refused: Vec::new(),
            cgroups: BTreeMap::new(),
            child: None,
        };
        let mut devices: Vec<String> = std::fs::read_dir("/dev")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_gpu(name))
            .collect();
        devices.sort();
        for name in devices {
            match may_open(&Path::new("/dev").join(&name)) {
                true => facts.gpus.push(name),
                false => facts.refused.push(name),
            }
        }
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            if let (Some(controller), Some(path)) = (parts.next(), parts.next()) {
                facts.cgroups.insert(controller.into(), path.into());
            }
        }
        facts
    }
}

fn is_gpu(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// The device cgroup says EPERM; what else goes wrong is the driver's business.
fn may_open(device: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    !opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[derive(Debug)]
struct Engine {
    names: Vec<String>,
    child: Option<u32>,
}

/// Serves until SIGTERM; requests in flight get `--shutdown-timeout`.
pub async fn run(args: EngineArgs) -> anyhow::Result<()> {
    let child = std::process::Command::new("setsid")
        .args(["sleep", "infinity"])
        .spawn()
        .ok();
    let engine = Arc::new(Engine {
        names: match args.served_model_name.is_empty() {
            true => vec![args.source],
            false => args.served_model_name,
        },
        child: child.map(|child| child.id()),
    });
    let router = Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route(
            "/version",
            get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }),
        )
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat))
        .with_state(engine);
    let listener = UnixListener::bind(&args.uds).with_context(|| format!("{}", args.uds.display()))?;
    println!("selftest-engine: listening on {}", args.uds.display());
    let mut terminate = signal(SignalKind::terminate())?;
    let (ended, mut ending) = tokio::sync::watch::channel(false);
    let mut stopping = ended.subscribe();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopping.wait_for(|end| *end).await;
    });
    let limit = Duration::from_secs(args.shutdown_timeout);
    tokio::spawn(async move {
        terminate.recv().await;
        println!("selftest-engine: ending, requests in flight have {limit:?}");
        let _ = ended.send(true);
        // The receivers outlive this only while requests are in flight.
        ended.closed().await;
    });
    tokio::select! {
        served = serving => Ok(served?),
        () = async {
            let _ = ending.wait_for(|end| *end).await;
            tokio::time::sleep(limit).await;
        } => Ok(()),
    }
}

async fn models(State(engine): State<Arc<Engine>>) -> Json<Value> {
    let data: Vec<Value> = engine
        .names
        .iter()
        .map(|name| json!({"id": name, "object": "model", "owned_by": "selftest"}))
        .collect();
    Json(json!({"object": "list", "data": data}))
}

#[derive(Debug, Deserialize)]
struct Asked {
    model: String,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
}

async fn chat(State(engine): State<Arc<Engine>>, Json(asked): Json<Asked>) -> (StatusCode, Json<Value>) {
    let refused = |code: StatusCode, message: &str| (code, Json(json!({"error": {"message": message}})));
    if !engine.names.contains(&asked.model) {
        return refused(StatusCode::NOT_FOUND, "no such model");
    }
    if asked.stream {
        return refused(StatusCode::BAD_REQUEST, "the selftest's engine does not stream");
    }
    let tokens = asked.max_tokens.unwrap_or(1);
    tokio::time::sleep(TOKEN * tokens).await;
    let facts = Facts {
        child: engine.child,
        ..Facts::here()
    };
    let content = serde_json::to_string(&facts).unwrap_or_default();
    let choice =
        json!({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}});
    let usage = json!({"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1});
    let answer = json!({
        "id": "selftest", "object": "chat.completion", "created": 0,
        "model": asked.model, "choices": [choice], "usage": usage,
    });
    (StatusCode::OK, Json(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slurm_serve_recipe::{EngineCall, Recipe};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: EngineArgs,
    }

    #[test]
    fn the_recipe_holds_and_its_command_line_is_understood() {
        let recipe = Recipe::parse_one(RECIPE).expect("holds");
        assert_eq!(recipe.name, NAME);
        let names = ["ada/selftest".to_owned()];
        let call = EngineCall {
            recipe: &recipe,
            extra_args: &[],
            served_names: &names,
            socket: Path::new("/tmp/s"),
            shutdown_timeout: Duration::from_secs(3),
        };
        let argv = call.argv();
        assert_eq!(argv[..2], ["slurm-serve", "selftest-engine"]);
        let line = <Line as clap::Parser>::parse_from(&argv[1..]);
        assert_eq!(line.args.served_model_name, names);
        assert_eq!(
            (line.args.uds.as_path(), line.args.shutdown_timeout),
            (Path::new("/tmp/s"), 3)
        );
    }

    #[test]
    fn gpus_are_known_by_their_device_files() {
        assert!(is_gpu("nvidia0") && is_gpu("nvidia15"));
        assert!(!is_gpu("nvidiactl") && !is_gpu("nvidia-uvm") && !is_gpu("nvidia"));
        let facts = Facts::here();
        assert_eq!(facts.pid, std::process::id());
        let text = serde_json::to_string(&facts).expect("JSON");
        assert_eq!(serde_json::from_str::<Facts>(&text).expect("facts"), facts);
    }
}
