//! One recipe: what a model needs to be served.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::catalog::CatalogFields;
use crate::env::pattern_matches;
use crate::error::RecipeError;
use crate::file;
use crate::name::name_of;

/// What a model needs to be served. Made by [`Recipe::parse`] alone, so whatever is in one has been checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    /// What users type behind `--serve-model=`; holds to [`crate::check_name`].
    pub name: String,
    /// A hub id (`org/name`) or an absolute path: the engine's first argument.
    pub source: String,
    /// One line for lists.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The unit of work that proves it ready.
    pub task: Task,
    /// Arguments of the engine, one flag or value each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Names of the job's variables that the engine gets; a trailing `*` is a prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pass_env: Vec<String>,
    /// GPUs that the job must have on the model's node. 0: runs on the CPU.
    pub gpus: u32,
    /// Memory that must be free on each of these GPUs, in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_gib: Option<f64>,
    /// The oldest engine that can serve it, as in `0.17` or `0.17.1`; see [`crate::version_at_least`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_engine_version: Option<String>,
    /// How long it may take from the engine's start until it is ready.
    #[serde(serialize_with = "as_people_write")]
    pub ready_timeout: Duration,
    /// How long requests in flight may take once the model ends. Slurm's KillWait bounds it further.
    #[serde(serialize_with = "as_people_write")]
    pub drain_timeout: Duration,
    /// Whether a model that was ready and is lost is started again.
    pub restart: Restart,
    /// How often at most, in the life of a job.
    pub max_restarts: u32,
    /// The pause before the first of them; each further one is twice as long, up to [`Recipe::LONGEST_RESTART_PAUSE`].
    #[serde(serialize_with = "as_people_write")]
    pub restart_pause: Duration,
    /// An engine that gives no sign of life for this long is taken for hanging.
    #[serde(serialize_with = "as_people_write")]
    pub unresponsive_after: Duration,
    /// Other names for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Who may publish it under its bare name.
    pub publish: Publish,
    /// What is started.
    pub engine: Engine,
    /// What catalogs get to know beyond.
    #[serde(skip_serializing_if = "is_default")]
    pub catalog: CatalogFields,
    /// Variables that the engine gets. They win over what the job passes on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// The unit of work that proves a model ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// One token of `/v1/chat/completions`.
    #[default]
    Chat,
    /// One token of `/v1/completions`.
    Completion,
    /// One input of `/v1/embeddings`.
    Embedding,
    /// One pair of `/v1/rerank`.
    Rerank,
    /// Nothing: that it lists its name is enough.
    None,
}

/// What becomes of a model that was ready and is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// It has failed.
    Never,
    /// It is started again, a bounded number of times. The default: the job's GPUs are allocated until its end, whether or not anything
    /// runs on them.
    #[default]
    OnFailure,
}

/// What is started to serve a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Engine {
    /// Program and its first arguments; the source follows, then all else.
    pub command: Vec<String>,
    /// Environment module to load first (Lmod or Environment Modules, by way of a login shell).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Python environment whose `bin` holds the program; an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub venv: Option<PathBuf>,
}

/// Who may have something: publish an admin's recipe under its bare name (all others get `user/name`), or serve a recipe of his own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publish {
    /// Whoever has a job.
    Everyone,
    /// Nobody.
    Nobody,
    /// Members of any of these Unix groups.
    Groups(Vec<String>),
}

// === impl Recipe ===

impl Recipe {
    /// No pause before another attempt is longer, unless `restart_pause` itself is.
    pub const LONGEST_RESTART_PAUSE: Duration = Duration::from_secs(300);

    /// How many attempts there may be at serving it in one job.
    pub fn max_attempts(&self) -> u32 {
        match self.restart {
            Restart::Never => 1,
            Restart::OnFailure => 1 + self.max_restarts,
        }
    }

    /// The pause before this attempt; the first is 1 and has none.
    pub fn pause_before(&self, attempt: u32) -> Duration {
        let Some(doublings) = attempt.checked_sub(2) else {
            return Duration::ZERO;
        };
        let longest = Self::LONGEST_RESTART_PAUSE.max(self.restart_pause);
        self.restart_pause
            .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
            .min(longest)
    }

    /// Reads a file's text: the keys of one recipe (named after the file unless `name` says else), or `[models.NAME]`
    /// tables. `origin` is what errors call it; nothing is opened.
    ///
    /// # Errors
    /// The first fault, as one line.
    pub fn parse(text: &str, origin: &Path) -> Result<Vec<Recipe>, RecipeError> {
        file::parse(text, origin)
    }

    /// Reads exactly one recipe, as [`Recipe::to_toml`] writes it. For text that came over the wire.
    ///
    /// # Errors
    /// As [`Recipe::parse`]; and if there is none, or more than one.
    pub fn parse_one(text: &str) -> Result<Recipe, RecipeError> {
        let origin = Path::new("recipe");
        let mut all = file::parse(text, origin)?;
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(RecipeError::new(
                origin,
                None,
                "exactly one recipe is wanted here",
            )),
        }
    }

    /// Writes it as TOML that [`Recipe::parse_one`] reads back to the same.
    pub fn to_toml(&self) -> String {
        // Every field of a checked recipe has a TOML form (finite numbers, text, lists, one level of tables).
        toml::to_string(self).unwrap_or_default()
    }

    /// The program to start: `VENV/bin/PROGRAM` where a venv is named, else as the recipe writes it.
    pub fn engine_program(&self) -> PathBuf {
        let program = self.engine.command.first().map(String::as_str).unwrap_or("vllm");
        match &self.engine.venv {
            Some(venv) => venv.join("bin").join(program),
            None => program.into(),
        }
    }

    /// Whether this variable of the job is handed on to the engine. Names that are ours never are.
    pub fn wants_env(&self, variable: &str) -> bool {
        self.pass_env
            .iter()
            .any(|pattern| pattern_matches(pattern, variable))
    }

    /// What a template's source is: whatever its user names.
    pub const ANY: &str = "*";

    /// Whether it stands in for models without a recipe of their own.
    pub fn is_template(&self) -> bool {
        self.source == Self::ANY
    }

    /// This template for a path or hub id: named after its last part, and nobody's to publish under a bare name.
    pub fn for_source(&self, source: &str) -> Recipe {
        Recipe {
            name: name_of(source),
            source: source.to_owned(),
            description: String::new(),
            aliases: Vec::new(),
            publish: Publish::Nobody,
            catalog: CatalogFields::default(),
            ..self.clone()
        }
    }

    /// Whether the source is a path on this machine (else it is a hub id).
    pub fn source_is_path(&self) -> bool {
        self.source.starts_with('/')
    }
}

// === impl Restart ===

impl Restart {
    pub(crate) const ALL: [Restart; 2] = [Restart::Never, Restart::OnFailure];

    /// As it is written in a recipe.
    pub fn as_str(self) -> &'static str {
        match self {
            Restart::Never => "never",
            Restart::OnFailure => "on-failure",
        }
    }
}

// === impl Task ===

impl Task {
    pub(crate) const ALL: [Task; 5] = [
        Task::Chat,
        Task::Completion,
        Task::Embedding,
        Task::Rerank,
        Task::None,
    ];

    /// As it is written in a recipe.
    pub fn as_str(self) -> &'static str {
        match self {
            Task::Chat => "chat",
            Task::Completion => "completion",
            Task::Embedding => "embedding",
            Task::Rerank => "rerank",
            Task::None => "none",
        }
    }
}

// === impl Engine ===

impl Default for Engine {
    fn default() -> Self {
        Self {
            command: vec!["vllm".into(), "serve".into()],
            module: None,
            venv: None,
        }
    }
}

// === impl Publish ===

impl Publish {
    /// Whether somebody with these Unix groups may.
    pub fn allows(&self, groups: &[String]) -> bool {
        match self {
            Publish::Everyone => true,
            Publish::Nobody => false,
            Publish::Groups(named) => named.iter().any(|g| groups.contains(g)),
        }
    }
}

/// As it is written.
impl<'de> Deserialize<'de> for Publish {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            Groups(Vec<String>),
        }
        let wanted = "write \"everyone\", \"nobody\", or a list of Unix groups";
        match Written::deserialize(from).map_err(|_| D::Error::custom(wanted))? {
            Written::Word(word) if word == "everyone" => Ok(Self::Everyone),
            Written::Word(word) if word == "nobody" => Ok(Self::Nobody),
            Written::Groups(groups) if !groups.is_empty() => Ok(Self::Groups(groups)),
            _ => Err(D::Error::custom(wanted)),
        }
    }
}

impl Serialize for Publish {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Publish::Everyone => to.serialize_str("everyone"),
            Publish::Nobody => to.serialize_str("nobody"),
            Publish::Groups(groups) => groups.serialize(to),
        }
    }
}

fn is_default(fields: &CatalogFields) -> bool {
    *fields == CatalogFields::default()
}

fn as_people_write<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&humantime::format_duration(*value).to_string())
}
