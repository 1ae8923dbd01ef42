//! A file that a proxy or a Prometheus reads: always whole (written beside, then renamed), never with a key in it.
//!
//! | format | read by | what is in it |
//! |---|---|---|
//! | `llm-d` | llm-d's file discovery | endpoints by literal IP address, with labels |
//! | `production-stack-json`, `-yaml` | the router of vLLM's production stack (`--dynamic-config-json`, `-yaml`) | backends and their models |
//! | `prometheus` | file_sd | targets with labels |
//! | `json` | anybody | our own list |

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::Foreign;
use super::entry::{Entry, Row};
use super::http::Trouble;
use super::journal::{Journal, replace};
use super::plan::Held;
use super::settings::{Format, Settings};

/// A name service that hangs must not hold up the goodbyes of others for longer.
const RESOLVE: Duration = Duration::from_secs(2);

/// The file.
#[derive(Debug)]
pub struct Written {
    path: PathBuf,
    format: Format,
    journal: Journal,
    /// What we wrote last; somebody may write over it.
    last: Mutex<Option<String>>,
}

impl Written {
    /// The error is one line.
    pub fn open(settings: &Settings, state_dir: &Path) -> Result<Self, String> {
        Ok(Self {
            path: settings.path.clone(),
            format: settings.format.ok_or("`format` is missing")?,
            journal: Journal::open(state_dir, &settings.name)?,
            last: Mutex::new(None),
        })
    }

    async fn write(&self) -> Result<(), Trouble> {
        let text = render(self.format, &self.journal.rows()).await?;
        replace(&self.path, text.as_bytes(), 0o644)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        Ok(())
    }
}

#[tonic::async_trait]
impl Foreign for Written {
    fn rows(&self, entry: &Arc<Entry>) -> Vec<Row> {
        vec![Row::of(entry)]
    }

    async fn held(&self) -> Result<Vec<Held>, Trouble> {
        let there = std::fs::read_to_string(&self.path).ok();
        let is_ours = there.is_some() && there == *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_ours {
            self.write().await?;
        }
        Ok(self.journal.held())
    }

    async fn add(&self, row: &Row) -> Result<(), Trouble> {
        self.journal.put(row, false)
    }

    async fn remove(&self, held: &Held) -> Result<(), Trouble> {
        self.journal.forget(&held.id)
    }

    async fn flush(&self) -> Result<(), Trouble> {
        self.write().await
    }
}

async fn render(format: Format, rows: &[Row]) -> Result<String, Trouble> {
    let value = match format {
        Format::LlmD => llm_d(rows).await?,
        Format::ProductionStackJson => production_stack_json(rows),
        Format::ProductionStackYaml => return Ok(production_stack_yaml(rows)),
        Format::Prometheus => prometheus(rows),
        Format::Json => json!({ "models": rows.iter().map(|row| &*row.entry).collect::<Vec<_>>() }),
    };
    let text = serde_json::to_string_pretty(&value).map_err(|e| Trouble::Own(e.to_string()))?;
    Ok(text + "\n")
}

/// Literal addresses only, and one bad entry keeps its reader from starting: one whose name can't be resolved is left out.
async fn llm_d(rows: &[Row]) -> Result<Value, Trouble> {
    let mut endpoints = Vec::new();
    for row in rows {
        let entry = &row.entry;
        let Some((address, port)) = literal(entry.authority()).await else {
            tracing::warn!(
                "{:?}: its host has no address here; llm-d is not told of it",
                entry
            );
            continue;
        };
        endpoints.push(json!({
            "name": name(&entry.generation),
            "address": address.to_string(),
            "port": port.to_string(),
            "labels": labels(row),
        }));
    }
    Ok(json!({ "endpoints": endpoints }))
}

async fn literal(authority: &str) -> Option<(IpAddr, u16)> {
    let looked = tokio::time::timeout(RESOLVE, tokio::net::lookup_host(authority)).await;
    let mut found = looked.ok()?.ok()?;
    found.find(|it| it.is_ipv4()).map(|it| (it.ip(), it.port()))
}

/// Lower case, digits and dashes, as names of endpoints are.
fn name(generation: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    generation.chars().map(plain).collect()
}

fn labels(row: &Row) -> Value {
    let entry = &row.entry;
    json!({
        "model": row.name,
        "recipe": entry.recipe,
        "owner": entry.owner,
        "cluster": entry.cluster,
        "node": entry.node,
        "job": entry.job_id.to_string(),
        "generation": entry.generation,
    })
}

/// How its router calls the tasks.
fn model_type(task: &str) -> &str {
    match task {
        "embedding" => "embeddings",
        "completion" => "completion",
        "rerank" => "rerank",
        _ => "chat",
    }
}

/// Three lists of the same length.
fn production_stack_json(rows: &[Row]) -> Value {
    let list = |of: &dyn Fn(&Row) -> String| rows.iter().map(of).collect::<Vec<_>>().join(",");
    json!({
        "service_discovery": "static",
        "routing_logic": "roundrobin",
        "static_backends": list(&|row| row.entry.url.clone()),
        "static_models": list(&|row| row.name.clone()),
        "static_model_types": list(&|row| model_type(&row.entry.task).to_owned()),
        "static_backend_health_checks": false,
    })
}

/// Every text in quotes as JSON has them, which are YAML's too.
fn production_stack_yaml(rows: &[Row]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut models: BTreeMap<&str, (Vec<String>, &str)> = BTreeMap::new();
    for row in rows {
        let model = models
            .entry(&row.name)
            .or_insert_with(|| (Vec::new(), model_type(&row.entry.task)));
        model.0.push(quoted(&row.entry.url));
    }
    let mut text = String::from("service_discovery: static\nrouting_logic: roundrobin\n");
    text += if models.is_empty() {
        "static_models: {}\n"
    } else {
        "static_models:\n"
    };
    for (name, (backends, kind)) in models {
        text += &format!(
            "  {}:\n    static_backends: [{}]\n    static_model_type: {}\n",
            quoted(name),
            backends.join(", "),
            quoted(kind)
        );
    }
    text
}

fn prometheus(rows: &[Row]) -> Value {
    let group = |row: &Row| json!({ "targets": [row.entry.authority()], "labels": labels(row) });
    rows.iter().map(group).collect()
}
