//! `slurm-serve selftest-engine`: takes vLLM's place behind the guard, answers at once or as slowly as it is asked to, and what it answers is
//! what it sees of its surroundings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Facts;

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
    use std::path::Path;

    use super::super::{NAME, RECIPE};
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
}
