//! What `sserve selftest` puts into jobs: an engine without a model, and a client that asks it. For a first look at an installation, too.
//!
//! No recipe of the admin's names them: they come by [`RECIPE`], a user's own.

mod client;
mod engine;
mod facts;

pub use client::{Answer, ClientArgs, ask, run as run_client};
pub use engine::{EngineArgs, TOKEN, run as run_engine};
pub use facts::Facts;

/// The name behind `--serve-model=`.
pub const NAME: &str = "selftest";

/// Its recipe, for `~/.config/slurm-serve/models.d/selftest.toml`.
pub const RECIPE: &str = r#"# An engine without a model, from `sserve selftest --print-recipe`: for a look at an installation, not for work.
name = "selftest"
description = "answers what it sees of its surroundings"
source = "/"
gpus = 0
ready_timeout = "1m"
drain_timeout = "15s"
restart = "never"

[engine]
command = ["slurm-serve", "selftest-engine"]
"#;
