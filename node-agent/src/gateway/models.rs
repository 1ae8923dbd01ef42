//! What there is: OpenAI's `/v1/models`, and everything the gateway knows for `sserve list`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slurm_serve_proto::v1::{Cause, ModelState};

use super::Gateway;
use super::errors::ApiError;
use super::registry::{Link, Now, Registry};
use super::replica::Replica;
use super::router;

/// OpenAI's list.
#[derive(Debug, Serialize)]
struct List {
    object: &'static str,
    data: Vec<Entry>,
}

/// OpenAI's model, and what a person wants to know beyond it. One for each public name.
#[derive(Debug, Serialize)]
struct Entry {
    id: String,
    object: &'static str,
    /// Seconds since the epoch since when the oldest replica is in its state.
    created: i64,
    /// The owners of all replicas: each could read the prompts that it is sent.
    owned_by: String,
    /// `ready`, else the most hopeful state that a replica is in.
    state: &'static str,
    aliases: Vec<String>,
    /// Of the first replica.
    node: String,
    /// Of the first replica.
    job_id: u32,
    /// Replicas in `state`.
    replicas: usize,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// `GET /v1/models`: what is ready; `?state=all` also what loads, ends, or failed of late.
pub async fn list(State(gateway): State<Arc<Gateway>>, RawQuery(query): RawQuery) -> Response {
    let all = match query.as_deref().map(state_of) {
        None | Some(Ok("ready")) => false,
        Some(Ok("all")) => true,
        Some(Ok(other)) => return bad_state(other).into_response(),
        Some(Err(())) => false,
    };
    let data = entries(&gateway.registry.read(), all, Now::read());
    let object = "list";
    Json(List { object, data }).into_response()
}

/// The value of `state` in a query; other parameters are not ours.
fn state_of(query: &str) -> Result<&str, ()> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(key, _)| *key == "state")
        .map(|(_, value)| value)
        .next_back()
        .ok_or(())
}

fn bad_state(given: &str) -> ApiError {
    let text = format!("state={given:?} is not known; there are ready and all");
    ApiError::invalid(http::StatusCode::BAD_REQUEST, "invalid_state", text).about("state")
}

/// `GET /v1/models/{id}`, by name or alias.
pub async fn one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Response {
    let (registry, now) = (gateway.registry.read(), Now::read());
    let meant = router::meant_by(&registry, &id);
    let ready: Vec<_> = meant
        .into_iter()
        .filter(|replica| replica.takes_requests(now.unix_ms))
        .collect();
    match entry(&ready) {
        Some(entry) => Json(entry).into_response(),
        None => match router::pick(&registry, &id, &[], now) {
            Err(refusal) => ApiError::refused(&id, refusal).into_response(),
            Ok(_) => ApiError::refused(&id, router::Refusal::Exhausted).into_response(),
        },
    }
}

fn entries(registry: &Registry, all: bool, now: Now) -> Vec<Entry> {
    let mut by_name: BTreeMap<&str, Vec<Arc<Replica>>> = BTreeMap::new();
    let known = registry
        .replicas()
        .chain(registry.failures())
        .filter(|replica| replica.model.published);
    for replica in known {
        let shown = match all {
            true => replica.state() != ModelState::Ended,
            false => replica.takes_requests(now.unix_ms),
        };
        if shown {
            by_name
                .entry(&replica.model.name)
                .or_default()
                .push(replica.clone());
        }
    }
    by_name.values().filter_map(|replicas| entry(replicas)).collect()
}

/// One name's entry: of the replicas in the most hopeful state.
fn entry(replicas: &[Arc<Replica>]) -> Option<Entry> {
    let best = replicas.iter().map(|replica| hope(replica.state())).min()?;
    let mut best: Vec<_> = replicas
        .iter()
        .filter(|replica| hope(replica.state()) == best)
        .collect();
    best.sort_by_key(|replica| replica.model.state_since_ms);
    let first = best.first()?;
    let unique = |texts: Vec<&String>| {
        let texts: std::collections::BTreeSet<_> = texts.into_iter().cloned().collect();
        texts.into_iter().collect::<Vec<_>>()
    };
    let failed = first.state() == ModelState::Failed;
    Some(Entry {
        id: first.model.name.clone(),
        object: "model",
        created: first.model.state_since_ms / 1000,
        owned_by: unique(best.iter().map(|replica| &replica.model.owner).collect()).join(", "),
        state: state_name(first.state()),
        aliases: unique(
            best.iter()
                .flat_map(|replica| &replica.model.aliases)
                .filter(|alias| first.answers_to(alias))
                .collect(),
        ),
        node: first.model.node.clone(),
        job_id: first.model.job_id,
        replicas: best.len(),
        error: failed.then(|| router::ending_text(first)),
    })
}

/// Orders states by how soon something can be had from them.
fn hope(state: ModelState) -> u8 {
    match state {
        ModelState::Ready => 0,
        ModelState::Loading => 1,
        ModelState::Launching => 2,
        ModelState::Requested => 3,
        ModelState::Draining => 4,
        ModelState::Failed => 5,
        ModelState::Ended | ModelState::Unspecified => 6,
    }
}

/// `ready` for `MODEL_STATE_READY`.
pub fn state_name(state: ModelState) -> &'static str {
    match state {
        ModelState::Unspecified => "unknown",
        ModelState::Requested => "requested",
        ModelState::Launching => "launching",
        ModelState::Loading => "loading",
        ModelState::Ready => "ready",
        ModelState::Draining => "draining",
        ModelState::Ended => "ended",
        ModelState::Failed => "failed",
    }
}

/// Everything, for `sserve list`.
#[derive(Debug, Serialize)]
struct Everything {
    models: Vec<Row>,
    agents: Vec<Agent>,
}

/// One replica: fields as in `Model` of the contract, without what is only its owner's (key, progress, log).
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    aliases: Vec<String>,
    recipe: String,
    owner: String,
    owner_uid: u32,
    cluster: String,
    node: String,
    job_id: u32,
    generation: String,
    state: &'static str,
    state_since_ms: i64,
    expires_ms: i64,
    task: String,
    base_url: String,
    published: bool,
    in_flight: u32,
    requests: u64,
    engine_version: String,
    ending: Option<Ending>,
    /// Of `in_flight`, those of this gateway.
    gateway_in_flight: usize,
    /// Why a ready model is not used by this gateway.
    trouble: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Ending {
    /// `gpu_memory` for `CAUSE_GPU_MEMORY`.
    cause: String,
    text: String,
}

/// How one node's agent is reached.
#[derive(Debug, Serialize)]
struct Agent {
    node: String,
    address: String,
    /// `connecting`, `connected` or `silent`.
    state: &'static str,
    since_ms: i64,
    /// Names its present life.
    instance: String,
    /// Why it is silent.
    text: String,
}

/// `GET /slurm-serve/v1/models`.
pub async fn everything(State(gateway): State<Arc<Gateway>>) -> Response {
    let registry = gateway.registry.read();
    let models = registry.replicas().chain(registry.failures());
    let mut models: Vec<_> = models.map(|replica| row(replica)).collect();
    models.sort_by(|a, b| (&a.name, a.job_id, &a.node).cmp(&(&b.name, b.job_id, &b.node)));
    let agents = registry.nodes().map(|(name, node)| {
        let (state, text) = match &node.link {
            Link::Connecting => ("connecting", ""),
            Link::Connected => ("connected", ""),
            Link::Silent(why) => ("silent", why.as_str()),
        };
        Agent {
            node: name.clone(),
            address: node.address.clone(),
            state,
            since_ms: node.since_ms,
            instance: node.instance().to_owned(),
            text: text.to_owned(),
        }
    });
    let agents = agents.collect();
    Json(Everything { models, agents }).into_response()
}

fn row(replica: &Replica) -> Row {
    let model = &replica.model;
    let ending = model.ending.as_ref().map(|ending| Ending {
        cause: Cause::try_from(ending.cause)
            .unwrap_or_default()
            .as_str_name()
            .trim_start_matches("CAUSE_")
            .to_lowercase(),
        text: ending.text.clone(),
    });
    Row {
        name: model.name.clone(),
        aliases: model.aliases.clone(),
        recipe: model.recipe.clone(),
        owner: model.owner.clone(),
        owner_uid: model.owner_uid,
        cluster: model.cluster.clone(),
        node: model.node.clone(),
        job_id: model.job_id,
        generation: model.generation.clone(),
        state: state_name(replica.state()),
        state_since_ms: model.state_since_ms,
        expires_ms: model.expires_ms,
        task: model.task.clone(),
        base_url: model.base_url.clone(),
        published: model.published,
        in_flight: model.in_flight,
        requests: model.requests,
        engine_version: model.engine_version.clone(),
        ending,
        gateway_in_flight: replica.load.in_flight(),
        trouble: replica.trouble(),
    }
}

/// `GET /health`: this process answers; no key is asked for.
pub async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    let (registry, now) = (gateway.registry.read(), Now::read());
    let connected = registry.nodes().filter(|(_, node)| node.link == Link::Connected);
    let (agents, of) = (connected.count(), registry.nodes().count());
    let ready = registry
        .replicas()
        .filter(|replica| replica.takes_requests(now.unix_ms))
        .count();
    Json(serde_json::json!({ "status": "ok", "agents": agents, "agents_known": of, "ready": ready }))
        .into_response()
}
