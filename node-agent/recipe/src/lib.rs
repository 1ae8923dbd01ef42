//! What a model needs to be served, and what a user may ask for.
//!
//! A crate of its own because three programs must agree on it word for word: the plugin (inside `sbatch` and inside
//! `slurmstepd`), the agent (as root) and the runner (as the user). It reads text and answers; it opens no network, starts
//! no process, holds no state, and does not panic on anything a user can write.
//!
//! - [`Recipe`], [`RecipeSet`]: TOML files and their checks; every fault is one line with file and line number
//! - [`ServeOptions`]: what stood behind `--serve-…`, checked
//! - [`check_args`]: engine flags that belong to us, refused in every spelling vLLM's parser takes
//! - [`public_name`]: bare or `user/name`
//! - [`EngineCall`]: the command line and environment that an engine is started with
//! - [`explain`]: why an engine failed, from what it left in its log

mod args;
#[cfg(test)]
mod args_tests;
mod catalog;
mod command;
mod env;
mod error;
mod explain;
#[cfg(test)]
mod explain_tests;
mod file;
#[cfg(test)]
mod file_tests;
mod flags;
mod logline;
mod name;
mod options;
mod place;
mod progress;
mod recipe;
mod set;
mod signs;
mod version;

pub use args::{check_args, split};
pub use catalog::CatalogFields;
pub use command::EngineCall;
pub use env::{check_env_name, check_pass_env, pattern_matches};
pub use error::{OptionError, RecipeError};
pub use explain::{CauseKind, Explained, explain};
pub use name::{check_name, public_name, published_user};
pub use options::{EnvMode, OPTION_NAMES, OnFailure, OptionKind, OptionText, RawOptions, ServeOptions, Wait};
pub use progress::meaningful_line;
pub use recipe::{Engine, Publish, Recipe, Restart, Task};
pub use set::RecipeSet;
pub use version::version_at_least;

/// The largest recipe text read from anywhere: a user's own recipe travels to the agent as text, which bounds it too.
pub const MAX_RECIPE_BYTES: usize = 64 * 1024;

/// The most that is passed on of a job's environment, names and values together.
pub const MAX_ENV_BYTES: usize = 256 * 1024;
