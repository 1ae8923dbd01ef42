//! The command line and environment that an engine is started with.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::recipe::Recipe;

/// Loads an environment module and becomes the engine: `$0` is the module, `"$@"` the command. A login shell, because that
/// is where sites define `module`; `exec`, so that the shell's process is the engine's API process.
const WITH_MODULE: &str = r#"module load "$0" && exec "$@""#;

/// One start of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineCall<'a> {
    /// What to serve.
    pub recipe: &'a Recipe,
    /// From `--serve-args`, split and checked.
    pub extra_args: &'a [String],
    /// The public name first, then the aliases.
    pub served_names: &'a [String],
    /// Where the engine listens. At most 107 bytes (`sun_path`).
    pub socket: &'a Path,
    /// How long the engine may drain after SIGTERM; rounded up to whole seconds, as vLLM takes them.
    pub shutdown_timeout: Duration,
}

impl EngineCall<'_> {
    /// Program and arguments, to be executed as they are, by no shell: the engine's command, the source, the recipe's
    /// arguments, the user's, and ours last, where argparse lets the last one win.
    pub fn argv(&self) -> Vec<String> {
        let recipe = self.recipe;
        let mut argv = Vec::new();
        if let Some(module) = &recipe.engine.module {
            argv.extend(["/bin/bash", "-lc", WITH_MODULE, module].map(String::from));
        }
        argv.push(recipe.engine_program().to_string_lossy().into_owned());
        argv.extend(recipe.engine.command.iter().skip(1).cloned());
        argv.push(recipe.source.clone());
        argv.extend(recipe.args.iter().cloned());
        argv.extend(self.extra_args.iter().cloned());
        if !self.served_names.is_empty() {
            argv.push("--served-model-name".into());
            argv.extend(self.served_names.iter().cloned());
        }
        argv.extend(["--uds".into(), self.socket.to_string_lossy().into_owned()]);
        let whole = self.shutdown_timeout.as_millis().div_ceil(1000);
        argv.extend(["--shutdown-timeout".into(), whole.to_string()]);
        argv
    }

    /// What the engine gets beside what the job passes on: `internal_port` is the first of `internal_ports` for its own
    /// use, `cache_dir` a private folder on node-local disk (vLLM executes what it finds in its caches). The recipe's own
    /// variables come last and win, but for those that keep the engine inside its window.
    pub fn env(&self, internal_port: u16, internal_ports: u16, cache_dir: &Path) -> BTreeMap<String, String> {
        let cache = |name: &str| cache_dir.join(name).to_string_lossy().into_owned();
        let mut env: BTreeMap<String, String> = [
            // Without it vLLM announces, and binds, the machine's own address.
            ("VLLM_HOST_IP", "127.0.0.1".to_owned()),
            ("VLLM_CACHE_ROOT", cache("vllm")),
            ("TRITON_CACHE_DIR", cache("triton")),
            ("TORCHINDUCTOR_CACHE_DIR", cache("inductor")),
            ("FLASHINFER_WORKSPACE_BASE", cache("flashinfer")),
            ("VLLM_NO_USAGE_STATS", "1".to_owned()),
            ("VLLM_DO_NOT_TRACK", "1".to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if let Some(folder) = self.socket.parent() {
            env.insert("VLLM_RPC_BASE_PATH".into(), folder.to_string_lossy().into_owned());
        }
        env.extend(
            self.recipe
                .env
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        if internal_port != 0 && internal_ports != 0 {
            env.insert("VLLM_PORT".into(), internal_port.to_string());
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(recipe: &'a Recipe, extra: &'a [String], names: &'a [String]) -> EngineCall<'a> {
        EngineCall {
            recipe,
            extra_args: extra,
            served_names: names,
            socket: Path::new("/tmp/s/v.sock"),
            shutdown_timeout: Duration::from_millis(14_001),
        }
    }

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn ours_come_last() {
        let recipe = Recipe::parse_one(
            "name = 'm'\nsource = '/w/m'\nargs = ['--seed', '1']\n[engine]\nvenv = '/opt/v'\ncommand = ['vllm', 'serve']",
        )
        .expect("holds");
        let (extra, names) = (owned(&["--dtype", "float32"]), owned(&["ada/m", "ada/n"]));
        assert_eq!(
            call(&recipe, &extra, &names).argv().join(" "),
            "/opt/v/bin/vllm serve /w/m --seed 1 --dtype float32 --served-model-name ada/m ada/n --uds /tmp/s/v.sock \
             --shutdown-timeout 15"
        );
    }

    #[test]
    fn a_module_is_loaded_by_a_shell_that_sees_no_text_of_the_recipe_as_code() {
        let recipe =
            Recipe::parse_one("name = 'm'\nsource = 'o/m'\n[engine]\nmodule = 'vllm/0.32'").expect("holds");
        let argv = call(&recipe, &[], &[]).argv();
        assert_eq!(
            argv[..4],
            [
                "/bin/bash",
                "-lc",
                "module load \"$0\" && exec \"$@\"",
                "vllm/0.32"
            ]
        );
        assert_eq!(argv[4..7], ["vllm", "serve", "o/m"]);
    }

    #[test]
    fn the_recipes_variables_win_but_not_over_the_port_window() {
        let recipe =
            Recipe::parse_one("name = 'm'\nsource = 'o/m'\n[env]\nTRITON_CACHE_DIR = '/mine'\nA = 'x=y'")
                .expect("holds");
        let env = call(&recipe, &[], &[]).env(18200, 40, Path::new("/tmp/c"));
        let get = |name: &str| env.get(name).map(String::as_str);
        assert_eq!(get("VLLM_PORT"), Some("18200"));
        assert_eq!(get("VLLM_HOST_IP"), Some("127.0.0.1"));
        assert_eq!(get("VLLM_CACHE_ROOT"), Some("/tmp/c/vllm"));
        assert_eq!(get("VLLM_RPC_BASE_PATH"), Some("/tmp/s"));
        assert_eq!((get("TRITON_CACHE_DIR"), get("A")), (Some("/mine"), Some("x=y")));
        assert!(!env.contains_key("VLLM_API_KEY"));
    }
}
