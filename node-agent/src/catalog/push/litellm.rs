//! LiteLLM's proxy: its model table over `/model/new`, `/model/delete`, `/v1/model/info`.
//!
//! A row of ours has an id of ours, and says in `model_info` whose it is. Several rows of one name are replicas. What LiteLLM says to a
//! second row of the same id is 500, so it is looked before and after, and never concluded from.

use std::path::Path;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use slurm_serve_recipe::CatalogFields;

use super::Foreign;
use super::entry::{Entry, Row};
use super::http::{Http, Trouble};
use super::plan::Held;
use super::settings::Settings;

/// LiteLLM's proxy.
#[derive(Debug)]
pub struct Litellm {
    http: Http,
    provider: String,
}

impl Litellm {
    /// The error is one line.
    pub fn open(settings: &Settings, _state_dir: &Path) -> Result<Self, String> {
        Ok(Self {
            http: Http::open(settings)?,
            provider: settings.provider.clone(),
        })
    }

    fn body(&self, row: &Row) -> Value {
        let entry = &row.entry;
        let mut params = json!({
            "model": format!("{}/{}", self.provider, entry.name),
            "api_base": format!("{}/v1", entry.url),
            "api_key": entry.key,
        });
        let mut info = json!({
            "id": at(row),
            "mode": mode(&entry.task),
            "slurm_serve_id": row.id,
            "slurm_serve_cluster": entry.cluster,
            "slurm_serve_node": entry.node,
            "slurm_serve_job": entry.job_id,
            "slurm_serve_generation": entry.generation,
            "slurm_serve_owner": entry.owner,
        });
        if let (Some(params), Some(info)) = (params.as_object_mut(), info.as_object_mut()) {
            write(&entry.fields, params, info);
        }
        json!({ "model_name": row.name, "litellm_params": params, "model_info": info })
    }
}

/// Ours in its table: no two clusters make the same.
fn at(row: &Row) -> String {
    format!("slurm-serve-{}-{}", row.entry.cluster, row.id)
}

/// As LiteLLM calls the tasks.
fn mode(task: &str) -> &str {
    match task {
        "none" => "chat",
        task => task,
    }
}

/// What of the recipe's is LiteLLM's business.
fn write(fields: &CatalogFields, params: &mut Map<String, Value>, info: &mut Map<String, Value>) {
    for (key, cost) in [
        ("input_cost_per_token", fields.input_cost_per_token),
        ("output_cost_per_token", fields.output_cost_per_token),
    ] {
        if let Some(cost) = cost {
            params.insert(key.into(), cost.into());
            info.insert(key.into(), cost.into());
        }
    }
    for (key, tokens) in [
        ("max_input_tokens", fields.max_input_tokens),
        ("max_output_tokens", fields.max_output_tokens),
    ] {
        if let Some(tokens) = tokens {
            info.insert(key.into(), tokens.into());
        }
    }
    if !fields.team.is_empty() {
        info.insert("team_id".into(), fields.team.clone().into());
    }
    if !fields.access_groups.is_empty() {
        info.insert("access_groups".into(), fields.access_groups.clone().into());
    }
}

fn held(row: &Value) -> Option<Held> {
    let info = row.get("model_info")?;
    let text = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let base = text(row.get("litellm_params")?, "api_base");
    Some(Held {
        at: info.get("id")?.as_str()?.to_owned(),
        id: info.get("slurm_serve_id")?.as_str()?.to_owned(),
        cluster: text(info, "slurm_serve_cluster"),
        node: text(info, "slurm_serve_node"),
        job_id: info
            .get("slurm_serve_job")
            .and_then(Value::as_u64)
            .and_then(|id| id.try_into().ok())
            .unwrap_or(0),
        url: base.trim_end_matches("/v1").to_owned(),
        name: text(row, "model_name"),
        leaving: false,
    })
}

#[tonic::async_trait]
impl Foreign for Litellm {
    fn rows(&self, entry: &Arc<Entry>) -> Vec<Row> {
        Row::of_each_name(entry)
    }

    async fn held(&self) -> Result<Vec<Held>, Trouble> {
        let answer = self.http.ask(Method::GET, "/v1/model/info", None).await?;
        // What it says while it has no model at all.
        if answer.status == StatusCode::INTERNAL_SERVER_ERROR
            && answer.text.contains("LLM Model List not loaded in")
        {
            return Ok(Vec::new());
        }
        let answer = answer.json()?;
        let rows = answer.get("data").and_then(Value::as_array);
        let rows =
            rows.ok_or_else(|| Trouble::Nonsense("GET /v1/model/info answers without `data`".into()))?;
        Ok(rows.iter().filter_map(held).collect())
    }

    async fn add(&self, row: &Row) -> Result<(), Trouble> {
        let answer = self
            .http
            .ask(Method::POST, "/model/new", Some(&self.body(row)))
            .await?;
        answer.json().map(drop)
    }

    async fn remove(&self, held: &Held) -> Result<(), Trouble> {
        let body = json!({ "id": held.at });
        let answer = self.http.ask(Method::POST, "/model/delete", Some(&body)).await?;
        // Gone meanwhile; whether it is, is looked at.
        if answer.status == StatusCode::BAD_REQUEST && answer.text.contains("not found") {
            return Ok(());
        }
        answer.json().map(drop)
    }
}
