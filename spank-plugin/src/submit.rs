//! sbatch, salloc and srun: is what was asked for possible at all? Runs as the user, where the user submits.
//!
//! A wrong request ends the command with a clear line before anything is queued. What this machine cannot know (no recipes
//! here, for instance) is left to the node, and said.

use slurm_serve_recipe::{OPTION_NAMES, RawOptions, ServeOptions};

use crate::options::{self, inherited_name};
use crate::progress::one_line;
use crate::settings::Settings;
use crate::user_recipes::Readable;

/// Which command asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// sbatch, salloc: makes a job.
    Submits,
    /// srun: makes a job, or a step of the one it is in.
    Srun,
}

/// What becomes of the command. The lines are for the user.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on.
    Pass(Vec<String>),
    /// Ends.
    Refuse(Vec<String>),
}

fn refuse(line: String) -> Verdict {
    Verdict::Refuse(vec![line])
}

/// Judges the options given to `command`; `var` reads its environment.
pub fn check(
    command: Command,
    given: &RawOptions,
    settings: &Settings,
    var: impl Fn(&str) -> Option<String>,
) -> Verdict {
    let var = |name: &str| var(name).filter(|value| !value.is_empty());
    if given.is_empty() {
        return Verdict::Pass(vec![]);
    }
    if given.model.is_empty() {
        return without_model(given, var);
    }
    if let Err(error) = ServeOptions::check(given) {
        return refuse(format!("serve: {error}"));
    }
    let job = var("SLURM_JOB_ID");
    match (command, job) {
        (Command::Srun, Some(job)) => step(given, &job, var),
        (Command::Submits, Some(job)) => {
            let mut verdict = recipe(&given.model, settings, var);
            let variable = inherited_name(options::MODEL);
            if let Verdict::Pass(lines) = &mut verdict
                && var(&variable).as_deref() == Some(given.model.as_str())
            {
                lines.push(format!(
                    "serve: this job gets a server of its own, as job {job} has one: unset {variable} to submit without"
                ));
            }
            verdict
        }
        (_, None) => recipe(&given.model, settings, var),
    }
}

/// Other options without a model: as a default in the environment they mean nothing; given by hand they are a mistake.
fn without_model(given: &RawOptions, var: impl Fn(&str) -> Option<String>) -> Verdict {
    let by_hand = given_options(given)
        .into_iter()
        .find(|(name, value)| var(&inherited_name(name)).as_deref() != Some(*value));
    match by_hand {
        Some((name, _)) => refuse(format!(
            "serve: --{name} means nothing without --{}=NAME: name the model, or leave it out",
            options::MODEL
        )),
        None => Verdict::Pass(vec![]),
    }
}

/// The options that were given, with their values.
fn given_options(given: &RawOptions) -> Vec<(&'static str, &str)> {
    let all = OPTION_NAMES
        .iter()
        .map(|option| (option.name, given.get(option.kind)));
    all.filter(|(_, value)| !value.is_empty()).collect()
}

/// A step gets the endpoint of its job, or is refused: one job, one server.
fn step(given: &RawOptions, job: &str, var: impl Fn(&str) -> Option<String>) -> Verdict {
    let asked = given.model.as_str();
    let inherited = var(&inherited_name(options::MODEL));
    let served = var("SERVE_MODEL");
    let is_the_jobs = inherited.as_deref() == Some(asked)
        || served.as_deref().is_some_and(|name| {
            name == asked || name.rsplit_once('/').is_some_and(|(_, bare)| bare == asked)
        });
    if !is_the_jobs {
        return refuse(match inherited.or(served) {
            Some(other) => format!(
                "serve: job {job} serves {}, and a step cannot have another model than its job: leave out --serve-model to use \
                 that one, or submit a job for {asked}",
                one_line(&other)
            ),
            None => format!(
                "serve: job {job} was submitted without --serve-model, and a step cannot add one: give the option to sbatch or \
                 salloc"
            ),
        });
    }
    // How the server runs was settled at submission; how this step waits and what it sees is its own.
    let own = ["serve-wait", "serve-env", options::MODEL];
    let changed = given_options(given)
        .into_iter()
        .find(|(name, value)| !own.contains(name) && var(&inherited_name(name)).as_deref() != Some(*value));
    match changed {
        Some((name, _)) => refuse(format!(
            "serve: job {job} has its model server already, and --{name} on a step cannot change it: give the option to sbatch or \
             salloc"
        )),
        None => Verdict::Pass(vec![]),
    }
}

fn recipe(model: &str, settings: &Settings, var: impl Fn(&str) -> Option<String>) -> Verdict {
    let readable = Readable::load(&settings.recipes, var("HOME").as_deref());
    match (
        readable.admin.find(model),
        readable.user.find(model).filter(|_| !model.contains('/')),
    ) {
        (Some(_), None) | (None, Some(_)) => return Verdict::Pass(vec![]),
        (Some(admins), Some(_)) => {
            return Verdict::Pass(vec![format!(
                "serve: {model} is the site's recipe {}; your own recipe of that name is not used: rename it",
                admins.name
            )]);
        }
        (None, None) => {}
    }
    if let Some(error) = readable.no_admin {
        return Verdict::Pass(vec![format!(
            "serve: {model} could not be checked here, the node will: {}: {error}",
            settings.recipes.display()
        )]);
    }
    if model.contains('/') {
        return Verdict::Refuse(vec![format!(
            "serve: {model} has no recipe, and this site serves no models without one: `sserve recipes list` shows what there is, and you can \
             write one of your own"
        )]);
    }
    let mut nearest = readable.admin.nearest(model);
    nearest.extend(readable.user.nearest(model));
    nearest.truncate(3);
    let advice = if nearest.is_empty() {
        "`sserve recipes list` shows what there is".to_owned()
    } else {
        format!("did you mean {}?", nearest.join(", "))
    };
    let mut lines = vec![format!("serve: there is no model {model:?}: {advice}")];
    // It may well be in a file that did not load.
    lines.extend(
        readable
            .broken
            .iter()
            .take(3)
            .map(|error| format!("serve: {error}")),
    );
    Verdict::Refuse(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Site {
        folder: tempfile::TempDir,
        settings: Settings,
    }

    fn site() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let recipes = folder.path().join("models.d");
        fs::create_dir(&recipes).unwrap();
        fs::write(recipes.join("tiny.toml"), "source = \"org/tiny\"\n").unwrap();
        let settings = Settings {
            recipes,
            ..Settings::default()
        };
        Site { folder, settings }
    }

    impl Site {
        fn check(&self, command: Command, given: &[(&str, &str)], vars: &[(&str, &str)]) -> Verdict {
            let find = |list: &[(&str, &str)], name: &str| {
                list.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            let options = options::gather(|name| find(given, name));
            let home = self.folder.path().to_str().unwrap();
            check(command, &options, &self.settings, |name| match name {
                "HOME" => Some(home.to_owned()),
                name => find(vars, name),
            })
        }
    }

    fn refusal(verdict: Verdict) -> String {
        match verdict {
            Verdict::Refuse(lines) => lines.join("\n"),
            Verdict::Pass(lines) => panic!("passed: {lines:?}"),
        }
    }

    const PASS: Verdict = Verdict::Pass(vec![]);
    const INHERITED: &str = "SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model";

    #[test]
    fn untagged_jobs_are_none_of_our_business() {
        assert_eq!(site().check(Command::Submits, &[], &[]), PASS);
    }

    #[test]
    fn a_known_model_passes_and_an_unknown_one_is_refused_with_the_nearest_names() {
        let site = site();
        assert_eq!(
            site.check(Command::Submits, &[("serve-model", "tiny")], &[]),
            PASS
        );
        let said = refusal(site.check(Command::Submits, &[("serve-model", "tinny")], &[]));
        assert!(
            said.contains("tinny") && said.contains("did you mean tiny"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn a_recipe_of_the_users_own_counts_and_cannot_hide_the_admins() {
        let site = site();
        let own = site.folder.path().join(".config/slurm-serve/models.d");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("mine.toml"), "source = \"/w/mine\"\n").unwrap();
        fs::write(own.join("tiny.toml"), "source = \"/w/tiny\"\n").unwrap();
        assert_eq!(
            site.check(Command::Submits, &[("serve-model", "mine")], &[]),
            PASS
        );
        let Verdict::Pass(lines) = site.check(Command::Submits, &[("serve-model", "tiny")], &[]) else {
            panic!("refused");
        };
        assert!(
            lines[0].contains("your own recipe of that name is not used"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_broken_recipe_is_shown_where_the_model_is_missing() {
        let site = site();
        fs::write(site.settings.recipes.join("big.toml"), "sauce = \"org/big\"\n").unwrap();
        let said = refusal(site.check(Command::Submits, &[("serve-model", "big")], &[]));
        assert!(said.contains("big.toml") && said.contains("sauce"), "{said}");
        assert_eq!(
            site.check(Command::Submits, &[("serve-model", "tiny")], &[]),
            PASS
        );
    }

    #[test]
    fn where_no_recipes_can_be_read_the_node_decides() {
        let mut site = site();
        site.settings.recipes = site.folder.path().join("none");
        let Verdict::Pass(lines) = site.check(Command::Submits, &[("serve-model", "any")], &[]) else {
            panic!("refused");
        };
        assert!(lines[0].contains("the node will"), "{lines:?}");
    }

    #[test]
    fn a_wrong_value_is_refused_before_anything_is_queued() {
        let said = refusal(site().check(
            Command::Submits,
            &[("serve-model", "tiny"), ("serve-wait", "maybe")],
            &[],
        ));
        assert!(said.contains("serve-wait"), "{said}");
    }

    #[test]
    fn options_without_a_model_are_a_mistake_unless_they_are_a_default() {
        let site = site();
        let said = refusal(site.check(Command::Submits, &[("serve-wait", "no")], &[]));
        assert!(
            said.contains("--serve-wait") && said.contains("--serve-model"),
            "{said}"
        );
        let default = [("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_wait", "no")];
        assert_eq!(
            site.check(Command::Submits, &[("serve-wait", "no")], &default),
            PASS
        );
    }

    #[test]
    fn a_step_gets_its_jobs_model_and_no_other() {
        let site = site();
        let srun = |given: &[(&str, &str)], vars: &[(&str, &str)]| {
            let vars: Vec<_> = vars.iter().copied().chain([("SLURM_JOB_ID", "7")]).collect();
            site.check(Command::Srun, given, &vars)
        };
        let tiny = [("serve-model", "tiny")];
        assert_eq!(srun(&tiny, &[(INHERITED, "tiny")]), PASS);
        assert_eq!(srun(&tiny, &[("SERVE_MODEL", "alice/tiny")]), PASS);
        let said = refusal(srun(&tiny, &[(INHERITED, "big")]));
        assert!(said.contains("job 7 serves big"), "{said}");
        let said = refusal(srun(&tiny, &[]));
        assert!(said.contains("submitted without --serve-model"), "{said}");
        let said = refusal(srun(
            &[("serve-model", "tiny"), ("serve-args", "--max-model-len 9")],
            &[(INHERITED, "tiny")],
        ));
        assert!(said.contains("--serve-args on a step"), "{said}");
    }

    #[test]
    fn a_nested_job_is_told_why_it_gets_a_server() {
        let site = site();
        let vars = [("SLURM_JOB_ID", "7"), (INHERITED, "tiny")];
        let Verdict::Pass(lines) = site.check(Command::Submits, &[("serve-model", "tiny")], &vars) else {
            panic!("refused");
        };
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains(&format!("unset {INHERITED}")), "{lines:?}");
    }
}
