//! The plugin's options and the names under which Slurm carries them in the environment.
//!
//! Which options there are, and what may stand behind them, is the recipe crate's to say: the agent judges them again.

use slurm_serve_proto::v1::ServeOptions;
use slurm_serve_recipe::{OPTION_NAMES, RawOptions};

/// The plugin's name for SPANK; part of the variables' names below.
pub const PLUGIN: &str = "serve";

/// The option that makes a job a tagged one.
pub const MODEL: &str = "serve-model";

/// The variable by which steps and nested jobs inherit an option: `SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model`.
///
/// Slurm makes it of the plugin's and the option's name, each character that is not alphanumeric becoming `_`
/// (spank.c, `_opt_env_name`).
pub fn inherited_name(option: &str) -> String {
    format!("SLURM_SPANK_{}", remote_name(option))
}

/// The variable by which sbatch hands an option to its own batch step, which removes it: `_SLURM_SPANK_OPTION_serve_serve_model`.
pub fn remote_name(option: &str) -> String {
    let option: String = option
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("_SLURM_SPANK_OPTION_{PLUGIN}_{option}")
}

/// All options as `get` knows them; what is not given is empty. Nothing is checked here.
pub fn gather(get: impl Fn(&str) -> Option<String>) -> RawOptions {
    let mut given = RawOptions::default();
    for option in OPTION_NAMES {
        *given.get_mut(option.kind) = get(option.name).unwrap_or_default();
    }
    given
}

/// The options as the agent takes them.
pub fn for_agent(given: RawOptions) -> ServeOptions {
    ServeOptions {
        model: given.model,
        args: given.args,
        wait: given.wait,
        publish: given.publish,
        name: given.name,
        env: given.env,
        on_failure: given.on_failure,
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
        let options = for_agent(gather(|name| Some(name.to_owned())));
        let fields = [
            options.model,
            options.args,
            options.wait,
            options.publish,
            options.name,
            options.env,
            options.on_failure,
        ];
        assert_eq!(
            fields.map(String::from),
            OPTION_NAMES.map(|option| option.name.to_owned())
        );
    }
}
