//! What there is: OpenAI's `/v1/models`, and everything the gateway knows for `sserve list`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slurm_serve_proto::v1::ModelState;

use super::Gateway;
use super::errors::ApiError;
use super::registry::{Link, Now, Registry};
use super::replica::Replica;
use super::router;
use crate::listing::{AgentState, ListedAgent, ListedEnding, ListedModel, Listing, state_word};

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
    state: String,
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
        state: state_word(first.state()),
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
        ModelState::Restarting => 4,
        ModelState::Unresponsive => 5,
        ModelState::Retiring => 6,
        ModelState::Draining => 7,
        ModelState::Failed => 8,
        ModelState::Ended | ModelState::Unspecified => 9,
    }
}

/// `GET` of [`crate::listing::PATH`]: everything, for `sserve list`. What only its owner may read is left out.
pub async fn everything(State(gateway): State<Arc<Gateway>>) -> Response {
    let registry = gateway.registry.read();
    let models = registry.replicas().chain(registry.failures());
    let mut models: Vec<_> = models.map(|replica| for_everybody(replica)).collect();
    models.sort_by(|a, b| (&a.name, a.job_id, &a.node).cmp(&(&b.name, b.job_id, &b.node)));
    let agents = registry.nodes().map(|(name, node)| {
        let error = match &node.link {
            Link::Connecting => Some("it has not answered yet".to_owned()),
            Link::Connected => None,
            Link::Silent(why) => Some(why.clone()),
        };
        let state = match error {
            None => AgentState::Ok,
            Some(_) => AgentState::Silent,
        };
        let node = name.clone();
        ListedAgent { node, state, error }
    });
    let agents = agents.collect();
    Json(Listing { models, agents }).into_response()
}

fn for_everybody(replica: &Replica) -> ListedModel {
    let listed = ListedModel::from(replica.model.clone());
    let ending = listed.ending.map(|ending| ListedEnding {
        cause: ending.cause,
        text: ending.text,
        ..ListedEnding::default()
    });
    ListedModel {
        progress: String::new(),
        log_path: String::new(),
        ending,
        ..listed
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
