//! The environment of a job that has a model: what is set, what is kept, what is said about it.

use slurm_serve_proto::v1::Model;
use slurm_serve_recipe::{OPTION_NAMES, pattern_matches};

use crate::options::inherited_name;

/// What becomes of the job's environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Variables and their new values.
    pub set: Vec<(String, String)>,
    /// Lines for the user, where something of theirs was replaced.
    pub told: Vec<String>,
}

/// The variables that would make steps and nested jobs ask for a model of their own.
pub fn inherited_options() -> [String; OPTION_NAMES.len()] {
    OPTION_NAMES.map(|option| inherited_name(option.name))
}

/// What the endpoint of `model` does to an environment. `openai` is false with `--serve-env=serve-only`; `var` reads the environment
/// as it is.
pub fn changes(model: &Model, openai: bool, var: impl Fn(&str) -> Option<String>) -> Changes {
    let var = |name: &str| var(name).filter(|value| !value.is_empty());
    let mut changes = Changes::default();
    let mut set = |name: &str, value: &str| changes.set.push((name.to_owned(), value.to_owned()));
    if openai {
        let mut replaced = Vec::new();
        for (name, value, ours_before) in [
            ("OPENAI_BASE_URL", &model.base_url, "SERVE_MODEL_URL"),
            ("OPENAI_API_KEY", &model.key, "SERVE_MODEL_KEY"),
        ] {
            // A value that is another job's endpoint came here by inheritance and is nobody's to keep.
            let theirs = var(name).filter(|old| old != value && var(ours_before).as_ref() != Some(old));
            if let Some(old) = theirs {
                set(&format!("SERVE_ORIG_{name}"), &old);
                replaced.push(name);
            }
            set(name, value);
        }
        if !replaced.is_empty() {
            let kept: Vec<String> = replaced.iter().map(|name| format!("SERVE_ORIG_{name}")).collect();
            changes.told.push(format!(
                "serve: your {} now mean{} this job's model; the old value is in {} (--serve-env=serve-only leaves OPENAI_* alone)",
                replaced.join(" and "),
                if replaced.len() == 1 { "s" } else { "" },
                kept.join(" and "),
            ));
        }
    }
    let mut set = |name: &str, value: &str| changes.set.push((name.to_owned(), value.to_owned()));
    set("SERVE_MODEL", &model.name);
    set("SERVE_MODEL_URL", &model.base_url);
    set("SERVE_MODEL_KEY", &model.key);
    if let Some(host) = host_of(&model.base_url) {
        let (lower, upper) = (var("no_proxy"), var("NO_PROXY"));
        // Programs read one or the other: the one that is missing must not hide what the other says.
        let lower_now = lower.clone().or_else(|| upper.clone()).unwrap_or_default();
        let upper_now = upper.or(lower).unwrap_or_default();
        set("no_proxy", &with_host(&lower_now, host));
        set("NO_PROXY", &with_host(&upper_now, host));
    }
    changes
}

/// `HOST` of `http://HOST:PORT/…`; an IPv6 address comes without its brackets.
fn host_of(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => authority.rsplit_once(':').map_or(authority, |(host, _port)| host),
    };
    (!host.is_empty()).then_some(host)
}

fn with_host(list: &str, host: &str) -> String {
    let covered = list
        .split(',')
        .any(|entry| matches!(entry.trim(), "*") || entry.trim() == host);
    match list.trim().trim_end_matches(',') {
        _ if covered => list.to_owned(),
        "" => host.to_owned(),
        others => format!("{others},{host}"),
    }
}

/// What of the job's environment the recipe asked for: `wanted` are names, a trailing `*` makes one a prefix. The options'
/// own variables never go along.
pub fn pick(environment: &[(String, String)], wanted: &[String]) -> Vec<(String, String)> {
    environment
        .iter()
        .filter(|(name, _)| wanted.iter().any(|pattern| pattern_matches(pattern, name)))
        .filter(|(name, _)| !name.starts_with("SLURM_SPANK_"))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn model() -> Model {
        Model {
            name: "alice/m".into(),
            base_url: "http://n1:18100/v1".into(),
            key: "k-new".into(),
            ..Model::default()
        }
    }

    /// The environment after the changes, and what was said.
    fn after(before: &[(&str, &str)], openai: bool) -> (BTreeMap<String, String>, Vec<String>) {
        let mut environment: BTreeMap<String, String> = before
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        let changes = changes(&model(), openai, |name| environment.get(name).cloned());
        environment.extend(changes.set);
        (environment, changes.told)
    }

    #[test]
    fn an_empty_environment_gets_everything_and_nothing_is_said() {
        let (environment, told) = after(&[], true);
        let expected = [
            ("NO_PROXY", "n1"),
            ("OPENAI_API_KEY", "k-new"),
            ("OPENAI_BASE_URL", "http://n1:18100/v1"),
            ("SERVE_MODEL", "alice/m"),
            ("SERVE_MODEL_KEY", "k-new"),
            ("SERVE_MODEL_URL", "http://n1:18100/v1"),
            ("no_proxy", "n1"),
        ];
        assert_eq!(
            environment,
            expected.map(|(name, value)| (name.into(), value.into())).into()
        );
        assert!(told.is_empty());
    }

    #[test]
    fn a_key_of_the_users_own_is_kept_and_said_in_one_line() {
        let (environment, told) = after(&[("OPENAI_API_KEY", "sk-mine")], true);
        assert_eq!(environment["SERVE_ORIG_OPENAI_API_KEY"], "sk-mine");
        assert_eq!(environment["OPENAI_API_KEY"], "k-new");
        assert!(!environment.contains_key("SERVE_ORIG_OPENAI_BASE_URL"));
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains("OPENAI_API_KEY") && !told[0].contains("sk-mine"),
            "{told:?}"
        );
    }

    #[test]
    fn what_another_job_set_is_replaced_without_a_word() {
        let (environment, told) = after(
            &[
                ("OPENAI_API_KEY", "k-other"),
                ("SERVE_MODEL_KEY", "k-other"),
                ("OPENAI_BASE_URL", "http://n9:1/v1"),
                ("SERVE_MODEL_URL", "http://n9:1/v1"),
                ("SERVE_ORIG_OPENAI_API_KEY", "sk-mine"),
            ],
            true,
        );
        assert!(told.is_empty());
        assert_eq!(environment["OPENAI_BASE_URL"], "http://n1:18100/v1");
        assert_eq!(environment["SERVE_ORIG_OPENAI_API_KEY"], "sk-mine");
    }

    #[test]
    fn serve_only_leaves_openai_alone() {
        let (environment, told) = after(&[("OPENAI_API_KEY", "sk-mine")], false);
        assert_eq!(environment["OPENAI_API_KEY"], "sk-mine");
        assert!(!environment.contains_key("OPENAI_BASE_URL"));
        assert_eq!(environment["SERVE_MODEL_KEY"], "k-new");
        assert!(told.is_empty());
    }

    #[test]
    fn the_host_is_appended_once_to_both_spellings_of_no_proxy() {
        let (environment, _) = after(&[("no_proxy", "localhost,.site")], true);
        assert_eq!(environment["no_proxy"], "localhost,.site,n1");
        assert_eq!(environment["NO_PROXY"], "localhost,.site,n1");
        let (environment, _) = after(&[("no_proxy", "n1"), ("NO_PROXY", "*")], true);
        assert_eq!(environment["no_proxy"], "n1");
        assert_eq!(environment["NO_PROXY"], "*");
    }

    #[test]
    fn hosts_are_found_in_urls() {
        assert_eq!(host_of("http://10.0.0.1:80/v1"), Some("10.0.0.1"));
        assert_eq!(host_of("http://[fe80::1]:80/v1"), Some("fe80::1"));
        assert_eq!(host_of("http://n1/v1"), Some("n1"));
        assert_eq!(host_of(""), None);
    }

    #[test]
    fn only_what_the_recipe_wants_is_handed_over() {
        let environment: Vec<(String, String)> = [
            ("HF_TOKEN", "t"),
            ("HF_HOME", "h"),
            ("HOME", "/h"),
            ("SLURM_SPANK_X", "x"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            pick(&environment, &wanted)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["HF_*"]), ["HF_TOKEN", "HF_HOME"]);
        assert_eq!(names(&["HOME", "HF_TOK"]), ["HOME"]);
        assert!(names(&["SLURM_SPANK_*"]).is_empty());
        assert!(names(&[]).is_empty());
    }
}
