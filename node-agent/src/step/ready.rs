//! When an engine is ready: facts only. It answers `/health` with 200, lists the name it was started for, is new enough, and has done one
//! unit of the work that the recipe names. (That it is alive is its waiter's business.)

use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use slurm_serve_proto::v1::Cause;
use slurm_serve_recipe::{Task, version_at_least};

use super::ask::{AskError, ask};
use super::outcome::Failure;

/// Between two looks: from here, growing, up to there.
const PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(100));
/// For answers that need no work.
const QUICK: Duration = Duration::from_secs(5);
/// A unit of work may compile kernels first; the recipe's deadline, kept by the caller, bounds it.
const UNIT: Duration = Duration::from_secs(3600);
/// An engine that is healthy and lists other names gets so many looks.
const OTHER_NAMES: u32 = 20;
/// A unit of work that the engine could not do for a fault of its own is tried so often.
const FAULTS: u32 = 20;

/// What to look for.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Where the engine listens.
    pub socket: PathBuf,
    /// The name that it must list.
    pub name: String,
    /// The unit of work.
    pub task: Task,
    /// The recipe's minimum.
    pub min_version: Option<String>,
}

impl Probe {
    /// Waits until the engine is ready and gives its version (empty if it tells none). Ends early only with a failure that waiting would not mend.
    pub async fn ready(&self) -> Result<String, Failure> {
        self.healthy().await;
        self.named().await?;
        let version = self.version().await;
        if let Some(wanted) = &self.min_version
            && !version_at_least(&version, wanted)
        {
            return Err(Failure::new(
                Cause::EngineTooOld,
                format!("the engine is version {version}; the recipe needs {wanted} or newer"),
                "install a newer engine, or name another one in the recipe (engine.venv, engine.module)",
            ));
        }
        self.work().await?;
        Ok(version)
    }

    /// Whether it says about itself that it can go on: false only if it says that it can't, or is not there.
    pub async fn alive(&self) -> bool {
        match ask(&self.socket, "/health", None, QUICK).await {
            Ok((status, _)) => status != StatusCode::SERVICE_UNAVAILABLE,
            // Busy is not dead.
            Err(AskError::Silent) => true,
            Err(_) => false,
        }
    }

    /// One unit of work, within this time: true if it was answered, though it were with a refusal. `None` where the recipe knows of none.
    pub fn unit(&self, within: Duration) -> Option<impl Future<Output = bool> + Send + 'static> {
        let (path, body) = unit(self.task, &self.name)?;
        let socket = self.socket.clone();
        Some(async move {
            let answer = ask(&socket, path, Some(&body), within).await;
            matches!(answer, Ok((status, _)) if !status.is_server_error())
        })
    }

    async fn healthy(&self) {
        let mut pause = Pause::default();
        loop {
            if matches!(
                ask(&self.socket, "/health", None, QUICK).await,
                Ok((StatusCode::OK, _))
            ) {
                return;
            }
            pause.wait().await;
        }
    }

    async fn named(&self) -> Result<(), Failure> {
        let mut pause = Pause::default();
        let mut others = 0;
        loop {
            if let Ok((StatusCode::OK, body)) = ask(&self.socket, "/v1/models", None, QUICK).await {
                let names = listed(&body);
                if names.contains(&self.name) {
                    return Ok(());
                }
                others += 1;
                if others == OTHER_NAMES {
                    return Err(Failure::new(
                        Cause::InvalidRequest,
                        format!("the engine lists {names:?} and not {:?}", self.name),
                        "does the recipe's engine.command take --served-model-name?",
                    ));
                }
            }
            pause.wait().await;
        }
    }

    async fn version(&self) -> String {
        let Ok((StatusCode::OK, body)) = ask(&self.socket, "/version", None, QUICK).await else {
            return String::new();
        };
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        value["version"]
            .as_str()
            .unwrap_or_default()
            .chars()
            .take(64)
            .collect()
    }

    async fn work(&self) -> Result<(), Failure> {
        let Some((path, body)) = unit(self.task, &self.name) else {
            return Ok(());
        };
        let mut pause = Pause::default();
        let mut faults = 0;
        loop {
            match ask(&self.socket, path, Some(&body), UNIT).await {
                Ok((status, _)) if status.is_success() => return Ok(()),
                Ok((status, answer)) => {
                    faults += 1;
                    if status.is_client_error() || faults == FAULTS {
                        return Err(self.refused(path, status, &answer));
                    }
                }
                // If it died over it, its waiter knows; if not, it is asked again.
                Err(_) => {}
            }
            pause.wait().await;
        }
    }

    fn refused(&self, path: &str, status: StatusCode, answer: &[u8]) -> Failure {
        let task = self.task.as_str();
        Failure::new(
            Cause::InvalidRequest,
            format!(
                "the engine is up and cannot do a unit of work ({path}: {status}: {})",
                said(answer)
            ),
            &format!("the recipe says task = \"{task}\"; is the model made for that?"),
        )
    }
}

/// Growing pauses.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSE.0)
    }
}

impl Pause {
    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = self.0.mul_f64(1.25).min(PAUSE.1);
    }
}

/// The smallest request of a task, and where it goes.
fn unit(task: Task, name: &str) -> Option<(&'static str, Value)> {
    Some(match task {
        Task::Chat => (
            "/v1/chat/completions",
            json!({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ),
        Task::Completion => (
            "/v1/completions",
            json!({"model": name, "prompt": "Hi", "max_tokens": 1}),
        ),
        Task::Embedding => ("/v1/embeddings", json!({"model": name, "input": "Hi"})),
        Task::Rerank => (
            "/v1/rerank",
            json!({"model": name, "query": "Hi", "documents": ["Hi"]}),
        ),
        Task::None => return None,
    })
}

/// The ids in an answer of /v1/models.
fn listed(body: &[u8]) -> Vec<String> {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let models = value["data"].as_array().cloned().unwrap_or_default();
    let ids = models.iter().filter_map(|model| model["id"].as_str());
    ids.map(str::to_owned).collect()
}

/// What an error's body says, in one short line.
fn said(answer: &[u8]) -> String {
    let value: Value = serde_json::from_slice(answer).unwrap_or_default();
    let message = value["error"]["message"]
        .as_str()
        .or_else(|| value["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(answer).into_owned(), str::to_owned);
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_listed_and_errors_are_one_line() {
        let body = br#"{"object":"list","data":[{"id":"tiny"},{"id":"ada/tiny"},{"no":1}]}"#;
        assert_eq!(listed(body), ["tiny", "ada/tiny"]);
        assert!(listed(b"<html>").is_empty());
        assert_eq!(
            said(br#"{"error":{"message":"no chat\n template"}}"#),
            "no chat template"
        );
        assert_eq!(said(b"Internal Server Error"), "Internal Server Error");
    }

    #[test]
    fn every_task_but_none_has_a_unit_of_work() {
        for task in [Task::Chat, Task::Completion, Task::Embedding, Task::Rerank] {
            let (path, body) = unit(task, "tiny").expect("a unit");
            assert!(path.starts_with("/v1/") && body["model"] == "tiny");
        }
        assert!(unit(Task::None, "tiny").is_none());
    }
}
