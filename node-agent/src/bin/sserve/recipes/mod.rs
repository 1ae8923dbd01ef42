//! `sserve recipes list|show|check`: what may stand behind `--serve-model=`.

mod check;
mod list;
mod show;

use std::path::{Path, PathBuf};

use slurm_serve::config::Config;
use slurm_serve_recipe::{Recipe, RecipeError, RecipeSet};

use crate::failure::{Exit, Failure};
use crate::out;

/// What may be served: the names behind --serve-model
///
/// Recipes are the admin's (agent.recipes, /etc/slurm-serve/models.d) and your own (~/.config/slurm-serve/models.d). An admin's
/// recipe wins over one of yours with the same name. Who may: anyone, on any host that has them.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    List(list::Args),
    Show(show::Args),
    Check(check::Args),
}

/// Runs the verb.
pub async fn run(args: Args, config: &Config, json: bool) -> Result<(), Failure> {
    let recipes = Recipes::load(config, std::env::var_os("HOME").as_deref().map(Path::new));
    match args.verb {
        Verb::List(args) => list::run(args, &recipes, json),
        Verb::Show(args) => show::run(args, &recipes, config, json).await,
        Verb::Check(args) => check::run(args, &recipes, json).await,
    }
}

/// All recipes that this user can read on this host.
struct Recipes {
    admin: RecipeSet,
    own: RecipeSet,
    /// One for each file, or recipe, that does not hold.
    broken: Vec<RecipeError>,
    admin_dir: PathBuf,
}

/// One recipe and whose it is.
struct Named<'a> {
    recipe: &'a Recipe,
    file: &'a Path,
    is_admins: bool,
}

impl Recipes {
    fn load(config: &Config, home: Option<&Path>) -> Self {
        let admin_dir = config.agent.recipes.clone();
        let (admin, mut broken) = RecipeSet::load(&admin_dir);
        let mut own = RecipeSet::default();
        if let Some(home) = home.filter(|home| home.is_absolute()) {
            let (found, errors) = RecipeSet::load(&home.join(".config/slurm-serve/models.d"));
            own = found;
            broken.extend(errors);
        }
        Self {
            admin,
            own,
            broken,
            admin_dir,
        }
    }

    /// The recipe that `--serve-model=NAME` means.
    fn get(&self, name: &str) -> Result<Named<'_>, Failure> {
        for (set, is_admins) in [(&self.admin, true), (&self.own, false)] {
            if let Some(recipe) = set.get(name) {
                let file = set.origin(&recipe.name).unwrap_or(Path::new(""));
                return Ok(Named {
                    recipe,
                    file,
                    is_admins,
                });
            }
        }
        let mut near = self.admin.nearest(name);
        near.extend(self.own.nearest(name));
        near.truncate(3);
        let hint = match near.is_empty() {
            true => "`sserve recipes list` shows what there is".to_owned(),
            false => format!("did you mean {}?", near.join(", ")),
        };
        self.tell_broken();
        Err(Failure::new(
            Exit::NotFound,
            format!("no recipe {name:?} on this host; {hint}"),
        ))
    }

    /// What could not be read may be what is looked for.
    fn tell_broken(&self) {
        for error in &self.broken {
            out::note(error.to_string());
        }
    }
}
