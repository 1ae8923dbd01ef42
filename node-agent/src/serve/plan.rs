//! From what was asked for to what will be launched: options and recipe checked once more, as root, because they came as text that the
//! user controls; then the public name, and who may see it.

use std::collections::BTreeMap;
use std::path::Path;

use slurm_serve_proto::v1;
use slurm_serve_recipe::{
    CatalogFields, MAX_ENV_BYTES, MAX_RECIPE_BYTES, OnFailure, Publish, RawOptions, Recipe, RecipeSet,
    ServeOptions, Wait, public_name,
};

/// What will be launched.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Checked.
    pub options: ServeOptions,
    /// Checked.
    pub recipe: Recipe,
    /// It is the admin's, not the user's.
    pub is_admin_recipe: bool,
    /// What clients will call it.
    pub public_name: String,
    /// What else it will answer to.
    pub aliases: Vec<String>,
    /// Will it be in public catalogs?
    pub published: bool,
}

/// Why it will not be launched: the one line that the user sees.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Who asks.
#[derive(Debug, Clone)]
pub struct Asker {
    /// By name.
    pub user: String,
    /// All groups, by name.
    pub groups: Vec<String>,
}

/// The options, checked.
pub fn check_options(raw: &v1::ServeOptions) -> Result<ServeOptions, Refused> {
    let raw = RawOptions {
        model: raw.model.clone(),
        args: raw.args.clone(),
        wait: raw.wait.clone(),
        publish: raw.publish.clone(),
        name: raw.name.clone(),
        env: raw.env.clone(),
        on_failure: raw.on_failure.clone(),
    };
    ServeOptions::check(&raw).map_err(|e| Refused(e.to_string()))
}

/// The admin's recipe of this name. Broken files are logged, the others still count; where there is none, the first of them is told.
fn admin_recipe(folder: &Path, name: &str) -> Result<Recipe, Refused> {
    let (set, errors) = RecipeSet::load(folder);
    for error in &errors {
        tracing::warn!("{error}");
    }
    if let Some(recipe) = set.find(name) {
        return Ok(recipe);
    }
    if name.contains('/') {
        return Err(Refused(format!(
            "{name:?} has no recipe, and this site serves no models without one; `sserve recipes list` shows what there is, and you can \
             write one of your own"
        )));
    }
    let near = match set.nearest(name).as_slice() {
        [] => "sserve recipes list shows what there is".to_owned(),
        names => format!("did you mean {}?", names.join(", ")),
    };
    // It may well be in a file that did not load.
    let broken = errors.first().map(|error| format!(" ({error})"));
    Err(Refused(format!(
        "no recipe for model {name:?} on this node ({}); {near}{}",
        folder.display(),
        broken.unwrap_or_default()
    )))
}

/// Is the recipe known here, or does the asker bring it?
pub fn admin_recipe_or_own(folder: &Path, name: &str, has_own: bool) -> Result<Option<Recipe>, Refused> {
    match admin_recipe(folder, name) {
        Ok(recipe) => Ok(Some(recipe)),
        Err(_) if has_own => Ok(None),
        Err(refused) => Err(refused),
    }
}

/// The plan for these options. `user_recipe` counts only where the admin has none of that name, and `own` allows it.
pub fn make(
    folder: &Path,
    own: &Publish,
    options: ServeOptions,
    user_recipe: &str,
    asker: &Asker,
) -> Result<Plan, Refused> {
    let admin = admin_recipe(folder, &options.model);
    let is_admin_recipe = admin.is_ok();
    let recipe = match admin {
        Ok(recipe) => recipe,
        Err(refused) if user_recipe.is_empty() => return Err(refused),
        Err(_) => own_recipe(own, user_recipe, asker)?,
    };
    // Who may not have the bare name publishes under his own, as for a recipe of his own.
    let may_have_bare_name = recipe.publish.allows(&asker.groups);
    let public = public_name(
        &recipe,
        is_admin_recipe,
        &options,
        &asker.user,
        may_have_bare_name,
    );
    let aliases = if public == recipe.name {
        recipe.aliases.clone()
    } else {
        Vec::new()
    };
    let published = options.publish.unwrap_or(true);
    Ok(Plan {
        options,
        recipe,
        is_admin_recipe,
        public_name: public,
        aliases,
        published,
    })
}

fn own_recipe(own: &Publish, text: &str, asker: &Asker) -> Result<Recipe, Refused> {
    if !own.allows(&asker.groups) {
        let who = match own {
            Publish::Groups(groups) => format!("members of {}", groups.join(", ")),
            _ => "nobody".into(),
        };
        return Err(Refused(format!(
            "recipes of one's own are for {who} here (agent.own_recipes); `sserve recipes list` names the site's"
        )));
    }
    if text.len() > MAX_RECIPE_BYTES {
        return Err(Refused(format!(
            "your recipe is {} bytes long; {MAX_RECIPE_BYTES} are allowed",
            text.len()
        )));
    }
    let recipe = Recipe::parse_one(text).map_err(|e| Refused(format!("your recipe: {e}")))?;
    match recipe.is_template() {
        true => Err(Refused(
            "your recipe: source = \"*\" is for the site's recipes; name a path or a hub id".into(),
        )),
        false => Ok(recipe),
    }
}

impl Plan {
    /// Does the job wait until it is ready?
    pub fn waits(&self) -> bool {
        self.options.wait == Wait::Ready
    }

    /// What catalogs get to know beyond: of what stands under the site's own name only, so that nobody puts himself into another's team.
    pub fn catalog_fields(&self) -> CatalogFields {
        match self.is_admin_recipe && self.public_name == self.recipe.name {
            true => self.recipe.catalog.clone(),
            false => CatalogFields::default(),
        }
    }

    /// Is the job cancelled when the server is lost?
    pub fn cancels_job(&self) -> bool {
        self.options.on_failure == OnFailure::Cancel
    }

    /// Of the variables handed over, those that the recipe wants.
    pub fn pick_env(
        &self,
        given: &std::collections::HashMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Refused> {
        // A name that is ours is never wanted, whatever pattern it fits.
        let picked: BTreeMap<String, String> = given
            .iter()
            .filter(|(name, value)| self.recipe.wants_env(name) && !value.contains('\0'))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let size: usize = picked.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MAX_ENV_BYTES {
            return Err(Refused(format!(
                "the variables that the recipe passes on are {size} bytes long; {MAX_ENV_BYTES} are allowed"
            )));
        }
        Ok(picked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_never_picks_what_is_ours() {
        let recipe = "name = 'mine'\nsource = 'o/m'\npass_env = ['VLLM_*', 'SLURM_*', 'HF_HOME']";
        let options = ServeOptions::check(&RawOptions {
            model: "mine".into(),
            ..RawOptions::default()
        })
        .expect("holds");
        let asker = Asker {
            user: "ada".into(),
            groups: Vec::new(),
        };
        let folder = Path::new("/nowhere/at/all");
        let plan = make(folder, &Publish::Everyone, options.clone(), recipe, &asker).expect("a plan");
        let given = [
            "VLLM_API_KEY",
            "VLLM_PORT",
            "SLURM_SERVE_NONCE",
            "PATH",
            "VLLM_LOGGING_LEVEL",
            "HF_HOME",
        ];
        let given = given.map(|name| (name.to_owned(), "x".to_owned())).into();
        let picked = plan.pick_env(&given).expect("short enough");
        assert_eq!(
            picked.keys().map(String::as_str).collect::<Vec<_>>(),
            ["HF_HOME", "VLLM_LOGGING_LEVEL"]
        );
        assert_eq!(plan.public_name, "ada/mine");

        let group = Publish::Groups(vec!["ml".into()]);
        for (own, who) in [(&Publish::Nobody, "for nobody"), (&group, "members of ml")] {
            let refused = make(folder, own, options.clone(), recipe, &asker).unwrap_err().0;
            assert!(refused.contains(who) && !refused.contains('\n'), "{refused}");
        }
        let member = Asker {
            groups: vec!["ml".into()],
            ..asker
        };
        assert!(make(folder, &group, options, recipe, &member).is_ok());
    }
}
