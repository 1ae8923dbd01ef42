//! Routers with `/workers`: smg, sglang-router, vllm-router. All three forget their workers when they restart, and never remove one that is dead.
//!
//! | | adds | known by | the model's name | the key it sends the worker |
//! |---|---|---|---|---|
//! | smg | in its own time (202) | id | asks the worker for it | its client's, else the worker's |
//! | sglang-router | in its own time (202) | id | ours | the worker's |
//! | vllm-router | at once (200), health-checked first | URL | ours | none |
//!
//! Ours carry labels; workers that the site added itself are never touched. A worker has one name there, so aliases are known to smg alone.

use std::path::Path;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Foreign;
use super::entry::{Entry, Row};
use super::http::{Http, Trouble};
use super::plan::Held;
use super::settings::{Settings, Software};

const ID: &str = "slurm-serve.id";
const CLUSTER: &str = "slurm-serve.cluster";
const NODE: &str = "slurm-serve.node";
const JOB: &str = "slurm-serve.job";
const OWNER: &str = "slurm-serve.owner";
const NAME: &str = "slurm-serve.name";

/// A router.
#[derive(Debug)]
pub struct Router {
    http: Http,
    software: Software,
}

impl Router {
    /// The error is one line.
    pub fn open(settings: &Settings, _state_dir: &Path) -> Result<Self, String> {
        Ok(Self {
            http: Http::open(settings)?,
            software: settings.software.ok_or("`software` is missing")?,
        })
    }

    fn body(&self, row: &Row) -> Value {
        let entry = &row.entry;
        json!({
            "url": entry.url,
            "model_id": row.name,
            "api_key": entry.key,
            "worker_type": "regular",
            "labels": {
                ID: row.id,
                CLUSTER: entry.cluster,
                NODE: entry.node,
                JOB: entry.job_id.to_string(),
                OWNER: entry.owner,
                NAME: row.name,
            },
        })
    }
}

fn held(worker: &Value) -> Option<Held> {
    let text = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    // vllm-router and sglang-router call them metadata.
    let labels = worker.get("labels").or_else(|| worker.get("metadata"))?;
    Some(Held {
        at: text(worker, "id"),
        id: labels.get(ID)?.as_str()?.to_owned(),
        cluster: text(labels, CLUSTER),
        node: text(labels, NODE),
        job_id: text(labels, JOB).parse().unwrap_or(0),
        url: text(worker, "url"),
        name: text(labels, NAME),
        leaving: worker.get("status").and_then(Value::as_str) == Some("draining"),
    })
}

#[tonic::async_trait]
impl Foreign for Router {
    fn rows(&self, entry: &Arc<Entry>) -> Vec<Row> {
        vec![Row::of(entry)]
    }

    async fn held(&self) -> Result<Vec<Held>, Trouble> {
        let answer = self.http.ask(Method::GET, "/workers", None).await?.json()?;
        let workers = answer.get("workers").and_then(Value::as_array);
        let workers =
            workers.ok_or_else(|| Trouble::Nonsense("GET /workers answers without `workers`".into()))?;
        Ok(workers.iter().filter_map(held).collect())
    }

    async fn add(&self, row: &Row) -> Result<(), Trouble> {
        let answer = self
            .http
            .ask(Method::POST, "/workers", Some(&self.body(row)))
            .await?;
        if answer.status == StatusCode::CONFLICT {
            return Err(answer.nonsense(&format!(
                "a worker at {} is there that is not ours, or one of ours is still leaving",
                row.entry.url
            )));
        }
        answer.json().map(drop)
    }

    async fn remove(&self, held: &Held) -> Result<(), Trouble> {
        let path = match self.software {
            Software::Smg | Software::SglangRouter => format!("/workers/{}", held.at),
            Software::VllmRouter => format!("/workers/{}", escaped(&held.url)),
        };
        let answer = self.http.ask(Method::DELETE, &path, None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(()),
            _ => answer.good().map(drop),
        }
    }
}

/// As one part of a path.
fn escaped(url: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    url.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
