//! Names of environment variables: which may be set or passed on, and which are ours.

/// Variables that a recipe must not touch, and why.
const OURS: &[(&str, &str)] = &[
    (
        "VLLM_API_KEY",
        "the guard in front of the engine asks for the job's key",
    ),
    (
        "VLLM_PORT",
        "each engine gets a window of internal ports from the agent",
    ),
    (
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
        "an engine that has died must end, so that it leaves the catalog",
    ),
];

/// Prefix of the variables that carry what slurm-serve's own parts say to each other.
const OUR_PREFIX: &str = "SLURM_SERVE_";

/// Whether a recipe may set this variable.
///
/// # Errors
/// What is wrong with it, without its name.
pub fn check_env_name(name: &str) -> Result<(), String> {
    if !is_name(name) {
        return Err("is no name of a variable: letters, digits and _ make one, no digit first".into());
    }
    if name.starts_with(OUR_PREFIX) {
        return Err(format!(
            "belongs to slurm-serve, as all names with {OUR_PREFIX} do; choose another"
        ));
    }
    match OURS.iter().find(|(ours, _)| *ours == name) {
        Some((_, why)) => Err(format!("belongs to slurm-serve: {why}; leave it out")),
        None => Ok(()),
    }
}

/// Whether a recipe may ask for this of the job's environment: a name, or the beginning of names and a `*`.
///
/// # Errors
/// What is wrong with it, without its text.
pub fn check_pass_env(pattern: &str) -> Result<(), String> {
    match pattern.strip_suffix('*') {
        Some("") => Err("would pass on the whole environment; name the variables, or their beginning".into()),
        Some(prefix) if prefix.starts_with(OUR_PREFIX) => check_env_name(prefix),
        Some(prefix) if is_name(prefix) => Ok(()),
        Some(_) => Err("must be a name, or the beginning of one and a single * at its end".into()),
        None => check_env_name(pattern),
    }
}

/// Whether `variable` is asked for by `pattern` (of `pass_env`). Never true for a name that is ours.
pub fn pattern_matches(pattern: &str, variable: &str) -> bool {
    let asked = match pattern.strip_suffix('*') {
        Some(prefix) => !prefix.is_empty() && variable.starts_with(prefix),
        None => pattern == variable,
    };
    asked && check_env_name(variable).is_ok()
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    name.len() <= 128
        && chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_ours_are_refused_and_never_matched() {
        for ours in ["SLURM_SERVE_NONCE", "VLLM_API_KEY", "VLLM_PORT"] {
            assert!(check_env_name(ours).is_err(), "{ours}");
            assert!(check_pass_env(ours).is_err(), "{ours}");
            assert!(!pattern_matches(ours, ours), "{ours}");
        }
        assert!(check_pass_env("SLURM_SERVE_*").is_err());
        assert!(!pattern_matches("SLURM_*", "SLURM_SERVE_NONCE"));
        assert!(pattern_matches("SLURM_*", "SLURM_JOB_ID"));
    }

    #[test]
    fn only_names_and_their_beginnings_may_be_asked_for() {
        for fine in ["HF_HOME", "HF_*", "_x", "http_proxy", "LD_PRELOAD"] {
            assert_eq!(check_pass_env(fine), Ok(()), "{fine}");
        }
        for bad in ["", "*", "A B", "A=B", "1A", "A*B", "A**", "Ä", "A\n", "A-B"] {
            assert!(check_pass_env(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_takes_its_names_alone() {
        assert!(pattern_matches("HF_*", "HF_HOME"));
        assert!(!pattern_matches("HF_*", "XHF_HOME"));
        assert!(!pattern_matches("HF_HOME", "HF_HOME2"));
        assert!(!pattern_matches("*", "PATH"));
        assert!(!pattern_matches("BASH_*", "BASH_FUNC_x%%"));
    }
}
