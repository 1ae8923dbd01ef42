//! `sserve recipes show NAME`

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use slurm_serve::config::Config;
use slurm_serve::serve::{Asker, Plan, by_uid, groups_of, make_plan};
use slurm_serve_recipe::{EngineCall, RawOptions, Recipe, ServeOptions};

use super::{Named, Recipes};
use crate::failure::Failure;
use crate::out;
use crate::text::shell_word;

/// A recipe with all its defaults, and the command that it would run for you
///
/// What only a job knows stands in capitals: SOCKET, the engine's own Unix socket; PORT, the first of its internal ports; CACHE, a
/// folder of the job's on node-local disk.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or alias
    name: String,
    /// As with --serve-args: more arguments for the engine, in one quoted text
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    args: String,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    file: String,
    from: &'static str,
    /// What clients put into "model".
    public_name: &'a str,
    aliases: &'a [String],
    recipe: &'a Recipe,
    command: Vec<String>,
    environment: BTreeMap<String, String>,
}

/// Runs the verb.
pub async fn run(args: Args, recipes: &Recipes, config: &Config, json: bool) -> Result<(), Failure> {
    let named = recipes.get(&args.name)?;
    let plan = plan(&args, &named, config).await?;
    let served: Vec<String> = std::iter::once(&plan.public_name)
        .chain(&plan.aliases)
        .cloned()
        .collect();
    let call = EngineCall {
        recipe: &plan.recipe,
        extra_args: &plan.options.args,
        served_names: &served,
        socket: Path::new("SOCKET"),
        shutdown_timeout: plan.recipe.drain_timeout,
    };
    let mut environment = call.env(1, 1, Path::new("CACHE"));
    // The folder of the socket, which has no name yet, and a number that is none yet.
    environment.insert("VLLM_RPC_BASE_PATH".into(), "CACHE".into());
    environment.insert("VLLM_PORT".into(), "PORT".into());
    let shown = Shown {
        file: named.file.display().to_string(),
        from: if named.is_admins { "admin" } else { "own" },
        public_name: &plan.public_name,
        aliases: &plan.aliases,
        recipe: &plan.recipe,
        command: call.argv(),
        environment,
    };
    match json {
        true => out::json(&shown),
        false => out::lines(lines(&shown)),
    }
}

/// What the agent would make of it, if this user asked.
async fn plan(args: &Args, named: &Named<'_>, config: &Config) -> Result<Plan, Failure> {
    let refused = |why: String| Failure::usage(why);
    let raw = RawOptions {
        model: args.name.clone(),
        args: args.args.clone(),
        ..RawOptions::default()
    };
    let options = ServeOptions::check(&raw).map_err(|e| refused(e.to_string()))?;
    let user = by_uid(nix::unistd::getuid().as_raw())
        .await
        .map_err(Failure::failed)?;
    let asker = Asker {
        user: user.name.clone(),
        groups: groups_of(user).await.map_err(Failure::failed)?,
    };
    let own = match named.is_admins {
        true => String::new(),
        false => named.recipe.to_toml(),
    };
    make_plan(
        &config.agent.recipes,
        &config.agent.own_recipes,
        options,
        &own,
        &asker,
    )
    .map_err(|e| refused(e.to_string()))
}

/// The recipe as TOML, the rest as comments in it: what is printed can be kept as a recipe.
fn lines(shown: &Shown<'_>) -> Vec<String> {
    let whose = match shown.from {
        "admin" => "the admin's",
        _ => "your own",
    };
    let mut lines = vec![format!("# {whose}: {}", shown.file)];
    lines.push(format!("# published as: {}", shown.public_name));
    if !shown.aliases.is_empty() {
        lines.push(format!("# also as: {}", shown.aliases.join(", ")));
    }
    lines.extend(shown.recipe.to_toml().lines().map(str::to_owned));
    lines.push(String::new());
    lines.push("# It runs, in the job, as its owner:".into());
    let set = shown
        .environment
        .iter()
        .map(|(name, value)| format!("#   {name}={}", word(value)));
    lines.extend(set.map(|line| line + " \\"));
    let words: Vec<String> = shown.command.iter().map(|part| word(part)).collect();
    lines.push(format!("#   {}", words.join(" ")));
    lines
}

/// Quoted only where a shell would take it apart.
fn word(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !text.is_empty() && text.chars().all(bare) {
        true => text.to_owned(),
        false => shell_word(text),
    }
}
