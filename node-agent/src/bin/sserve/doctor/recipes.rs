//! The admin's recipes: each file, and whether this node could run what they name.

use slurm_serve::step::checks;
use slurm_serve_recipe::{Recipe, RecipeSet};

use super::finding::Findings;
use super::gpus;
use super::host::{Host, Role};

const CHECK: &str = "recipes";

/// Looks at all of them.
pub fn look(host: &Host, found: &mut Findings) {
    let dir = &host.config.agent.recipes;
    let (recipes, errors) = RecipeSet::load(dir);
    for error in &errors {
        found.fail(
            CHECK,
            error.to_string(),
            "its models can't be served until it is corrected; no restart is needed",
        );
    }
    let count = recipes.iter().count();
    match count {
        0 => found.warn(
            CHECK,
            format!(
                "{} has none: only users' own recipes can be served",
                dir.display()
            ),
            "docs/recipes.md shows how to write one",
        ),
        n => found.ok(CHECK, format!("{}: {n} hold", dir.display())),
    }
    for recipe in recipes.iter() {
        match host.role {
            Role::Compute => runs_here(recipe, host, found),
            Role::Login => {}
        }
    }
    if host.role == Role::Login && count > 0 {
        found.skip(
            CHECK,
            "whether their engines are there is looked at on compute nodes",
        );
    }
}

fn runs_here(recipe: &Recipe, host: &Host, found: &mut Findings) {
    let name = &recipe.name;
    let slurms = gpus::by_slurm(host.field("Gres").unwrap_or_default());
    if host.record.is_some() && recipe.gpus > slurms {
        return found.skip(
            CHECK,
            format!(
                "{name}: needs {} GPUs, and by Slurm this node has {slurms}: not for this node",
                recipe.gpus
            ),
        );
    }
    let path = "/usr/local/bin:/usr/bin:/bin";
    match checks::program(recipe, path) {
        Ok(Some(program)) => {
            let version = checks::installed_version(&program)
                .map_or(String::new(), |version| format!(", vLLM {version}"));
            found.ok(CHECK, format!("{name}: {} is here{version}", program.display()));
        }
        Ok(None) => found.skip(
            CHECK,
            format!(
                "{name}: its engine comes from the module {}; `srun sserve recipes check {name}` looks at it",
                recipe.engine.module.as_deref().unwrap_or("?")
            ),
        ),
        Err(failure) => found.warn(CHECK, format!("{name}: {}", failure.text), failure.hint),
    }
    if let Err(failure) = checks::weights(&recipe.source) {
        found.warn(CHECK, format!("{name}: {}", failure.text), failure.hint);
    }
}
