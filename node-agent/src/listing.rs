//! What is served where, as JSON: what the gateway answers on [`PATH`] and what `sserve list --json` and `sserve status --json` print.
//!
//! Readers must ignore keys they do not know; new ones may come. Keys of models are never in it.

use serde::{Deserialize, Serialize};
use slurm_serve_proto::v1;

/// Where a gateway answers with a [`Listing`] (`GET`).
pub const PATH: &str = "/slurm-serve/v1/models";

/// All models that the asked agents know of, and who was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// One entry for each replica.
    pub models: Vec<ListedModel>,
    /// One entry for each agent that was asked, silent ones too: no model on a silent node is not the same as none there.
    pub agents: Vec<ListedAgent>,
}

/// One agent and whether it answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListedAgent {
    /// Slurm's NodeName.
    pub node: String,
    /// Whether it answered.
    pub state: AgentState,
    /// Why not, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Whether an agent answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// It did.
    #[default]
    Ok,
    /// It did not, or its answer could not be trusted.
    Silent,
}

/// One served model: `Model` of `model.proto` without its key, with states and causes as lowercase words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // documented in model.proto, once
pub struct ListedModel {
    pub name: String,
    pub aliases: Vec<String>,
    pub recipe: String,
    pub owner: String,
    pub owner_uid: u32,
    pub cluster: String,
    pub node: String,
    pub job_id: u32,
    pub generation: String,
    /// `requested`, `launching`, `loading`, `ready`, `unresponsive`, `retiring`, `draining`, `restarting`, `ended`, `failed`.
    pub state: String,
    pub state_since_ms: i64,
    /// 0 = no limit known.
    pub expires_ms: i64,
    pub task: String,
    pub base_url: String,
    pub published: bool,
    pub in_flight: u32,
    pub requests: u64,
    pub progress: String,
    pub engine_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<ListedEnding>,
    pub log_path: String,
    pub attempt: u32,
    pub max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<ListedEnding>,
    /// 0 = no limit known.
    pub retires_ms: i64,
}

/// Why a model ended: `Ending` of `model.proto`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // documented in model.proto, once
pub struct ListedEnding {
    /// `gpu_memory`, `cancelled`, …: the names of the enum `Cause`, in lower case.
    pub cause: String,
    pub text: String,
    pub hint: String,
    pub log_path: String,
    pub log_tail: Vec<String>,
    pub wait_status: Option<i32>,
}

/// A state as one lowercase word.
pub fn state_word(state: v1::ModelState) -> String {
    word(state.as_str_name(), "MODEL_STATE_")
}

/// A cause as one lowercase word.
pub fn cause_word(cause: v1::Cause) -> String {
    word(cause.as_str_name(), "CAUSE_")
}

fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

impl From<v1::Model> for ListedModel {
    fn from(model: v1::Model) -> Self {
        Self {
            state: state_word(model.state()),
            name: model.name,
            aliases: model.aliases,
            recipe: model.recipe,
            owner: model.owner,
            owner_uid: model.owner_uid,
            cluster: model.cluster,
            node: model.node,
            job_id: model.job_id,
            generation: model.generation,
            state_since_ms: model.state_since_ms,
            expires_ms: model.expires_ms,
            task: model.task,
            base_url: model.base_url,
            published: model.published,
            in_flight: model.in_flight,
            requests: model.requests,
            progress: model.progress,
            engine_version: model.engine_version,
            ending: model.ending.map(ListedEnding::from),
            log_path: model.log_path,
            attempt: model.attempt,
            max_attempts: model.max_attempts,
            last_failure: model.last_failure.map(ListedEnding::from),
            retires_ms: model.retires_ms,
        }
    }
}

impl From<v1::Ending> for ListedEnding {
    fn from(ending: v1::Ending) -> Self {
        Self {
            cause: cause_word(ending.cause()),
            text: ending.text,
            hint: ending.hint,
            log_path: ending.log_path,
            log_tail: ending.log_tail,
            wait_status: ending.wait_status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_causes_are_words_and_keys_never_show() {
        let model = v1::Model {
            state: v1::ModelState::Failed.into(),
            key: "sk-secret".into(),
            ending: Some(v1::Ending {
                cause: v1::Cause::GpuMemory.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let json = serde_json::to_string(&ListedModel::from(model)).unwrap();
        assert!(
            json.contains(r#""state":"failed""#) && json.contains(r#""cause":"gpu_memory""#),
            "{json}"
        );
        assert!(!json.contains("secret"), "{json}");
    }

    #[test]
    fn a_newer_gateway_is_understood() {
        let json = r#"{"models":[{"name":"m","state":"ready","colour":"red"}],"agents":[{"node":"n1","state":"silent","error":"x"}],"more":1}"#;
        let listing: Listing = serde_json::from_str(json).unwrap();
        assert_eq!(listing.models[0].state, "ready");
        assert_eq!(listing.agents[0].state, AgentState::Silent);
    }
}
