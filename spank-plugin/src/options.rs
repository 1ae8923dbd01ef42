//! The plugin's options and the names under which Slurm carries them in the environment.
//!
//! Every option takes an argument: argument-less ones are broken in some releases.

use slurm_serve_proto::v1::ServeOptions;

/// The plugin's name for SPANK; part of the variables' names below.
pub const PLUGIN: &str = "serve";

/// The option that makes a job a tagged one.
pub const MODEL: &str = "serve-model";

/// One option as `--help` shows it.
#[derive(Debug, Clone, Copy)]
pub struct OptionHelp {
    /// Without the leading dashes.
    pub name: &'static str,
    /// What stands after the `=`.
    pub argument: &'static str,
    /// One line.
    pub usage: &'static str,
}

const fn help(name: &'static str, argument: &'static str, usage: &'static str) -> OptionHelp {
    OptionHelp {
        name,
        argument,
        usage,
    }
}

/// All options, in the order of `--help`.
pub const ALL: [OptionHelp; 7] = [
    help(
        MODEL,
        "NAME",
        "serve this model beside the job, from its start to its end",
    ),
    help(
        "serve-args",
        "ARGS",
        "more arguments for the engine, quoted as in a shell",
    ),
    help(
        "serve-wait",
        "ready|no",
        "start the script once the model is ready (default), or at once",
    ),
    help(
        "serve-publish",
        "yes|no",
        "whether the model is listed for others",
    ),
    help("serve-name", "NAME", "publish it as USER/NAME"),
    help(
        "serve-env",
        "openai|serve-only",
        "set OPENAI_* and SERVE_* for the job (default), or SERVE_* alone",
    ),
    help(
        "serve-on-failure",
        "keep|cancel",
        "what becomes of the job when its model is lost (default: keep)",
    ),
];

/// The variable by which steps and nested jobs inherit an option: `SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model`.
///
/// Slurm makes it of the plugin's and the option's name, each character that is not alphanumeric becoming `_`
/// (spank.c, `_opt_env_name`).
pub fn inherited_name(option: &str) -> String {
    let option: String = option
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("SLURM_SPANK__SLURM_SPANK_OPTION_{PLUGIN}_{option}")
}

/// All options as `get` knows them; what is not given is empty. Nothing is checked here.
pub fn gather(get: impl Fn(&str) -> Option<String>) -> ServeOptions {
    let value = |name: &str| get(name).unwrap_or_default();
    ServeOptions {
        model: value(MODEL),
        args: value("serve-args"),
        wait: value("serve-wait"),
        publish: value("serve-publish"),
        name: value("serve-name"),
        env: value("serve-env"),
        on_failure: value("serve-on-failure"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_spelled_as_slurm_spells_them() {
        assert_eq!(
            inherited_name(MODEL),
            "SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model"
        );
        assert_eq!(
            inherited_name("serve-on-failure"),
            "SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_on_failure"
        );
    }

    #[test]
    fn every_option_reaches_its_field() {
        let options = gather(|name| Some(name.to_owned()));
        let fields = [
            options.model,
            options.args,
            options.wait,
            options.publish,
            options.name,
            options.env,
            options.on_failure,
        ];
        assert_eq!(fields.map(String::from), ALL.map(|option| option.name.to_owned()));
    }
}
