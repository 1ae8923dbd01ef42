//! A model as a foreign catalog gets to know it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slurm_serve_proto::v1::Model;
use slurm_serve_recipe::CatalogFields;

/// One replica that takes requests. It has a `Debug` without its key.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Which attempt, and so which entry.
    pub generation: String,
    /// The public name.
    pub name: String,
    /// Others.
    pub aliases: Vec<String>,
    /// The recipe it was made from.
    pub recipe: String,
    /// The job's owner.
    pub owner: String,
    /// ClusterName.
    pub cluster: String,
    /// NodeName.
    pub node: String,
    /// Slurm's job id.
    pub job_id: u32,
    /// chat, completion, embedding, rerank or none.
    pub task: String,
    /// `http://HOST:PORT`, without a path.
    pub url: String,
    /// Milliseconds since the epoch; 0: not known.
    pub expires_ms: i64,
    /// What an admin's recipe says for catalogs.
    #[serde(default)]
    pub fields: CatalogFields,
    /// For the guard.
    #[serde(skip)]
    pub key: String,
}

/// An entry under one of its names.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What tells it from all others of ours: the generation, and for an alias `~ALIAS` behind it.
    pub id: String,
    /// The name.
    pub name: String,
    /// The rest.
    pub entry: Arc<Entry>,
}

impl Entry {
    /// Of a model and its key in clear text; `None` if nobody could reach it.
    pub fn of(model: &Model, key: &str) -> Option<Self> {
        let url = model.base_url.strip_suffix("/v1")?.to_owned();
        Some(Self {
            generation: model.generation.clone(),
            name: model.name.clone(),
            aliases: model.aliases.clone(),
            recipe: model.recipe.clone(),
            owner: model.owner.clone(),
            cluster: model.cluster.clone(),
            node: model.node.clone(),
            job_id: model.job_id,
            task: model.task.clone(),
            url,
            expires_ms: model.expires_ms,
            fields: fields(model),
            key: key.to_owned(),
        })
    }

    /// `HOST:PORT`.
    pub fn authority(&self) -> &str {
        self.url
            .split_once("://")
            .map_or(self.url.as_str(), |(_, rest)| rest)
    }
}

fn fields(model: &Model) -> CatalogFields {
    let Some(told) = &model.catalog else {
        return CatalogFields::default();
    };
    CatalogFields {
        team: told.team.clone(),
        access_groups: told.access_groups.clone(),
        input_cost_per_token: told.input_cost_per_token,
        output_cost_per_token: told.output_cost_per_token,
        max_input_tokens: told.max_input_tokens,
        max_output_tokens: told.max_output_tokens,
    }
}

impl Row {
    /// Under its own name alone.
    pub fn of(entry: &Arc<Entry>) -> Self {
        Self {
            id: entry.generation.clone(),
            name: entry.name.clone(),
            entry: entry.clone(),
        }
    }

    /// Under its own name, and under each alias.
    pub fn of_each_name(entry: &Arc<Entry>) -> Vec<Self> {
        let aliases = entry.aliases.iter().map(|alias| Self {
            id: format!("{}~{alias}", entry.generation),
            name: alias.clone(),
            entry: entry.clone(),
        });
        std::iter::once(Self::of(entry)).chain(aliases).collect()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} at {})", self.name, self.generation, self.url)
    }
}
