//! The files that an admin of the lab's cluster would have written.

use std::time::Duration;

/// Short waits, so that a test of a timeout is short too.
const SHORT: &str = r#"heartbeat = "500ms"
lease = "4s"
recover_timeout = "5s"
end_time_every = "3s"
"#;

/// What a watcher believes of a silent node, with short waits or as the product comes.
pub fn lease(short: bool) -> Duration {
    Duration::from_secs(if short { 4 } else { 10 })
}

/// The settings of a node; `more` are lines for `[agent]`, and tables.
pub fn config(gateway: &str, short: bool, more: &(String, String)) -> String {
    let waits = if short { SHORT } else { "" };
    let (agent, tables) = more;
    format!(
        r#"[agent]
{waits}{agent}
[gateway]
listen = "0.0.0.0:8700"
discover_interval = "5s"

[client]
gateway = "http://{gateway}:8700"

{tables}"#
    )
}

/// A model served by the stub engine, with what the engine is to do.
pub fn stub_recipe(name: &str, env: &[(&str, &str)], more: &str) -> String {
    let env: String = env
        .iter()
        .map(|(key, value)| format!("{key} = {value:?}\n"))
        .collect();
    // Tests of one end each; those of restarts say otherwise.
    let restart = if more.contains("restart") {
        ""
    } else {
        "restart = \"never\"\n"
    };
    format!(
        "name = {name:?}\nsource = \"/opt\"\ngpus = 0\ndrain_timeout = \"5s\"\nready_timeout = \"30s\"\n{restart}{more}\n\
         [engine]\ncommand = [\"/usr/lib/slurm-serve/stub-engine\", \"serve\"]\n\n[env]\n{env}"
    )
}

/// The tiny model, served by the real vLLM on CPUs.
pub const TINY: &str = r#"name = "tiny"
source = "/opt/models/tiny"
gpus = 0
ready_timeout = "5m"
drain_timeout = "5s"
args = ["--max-model-len", "2048", "--enforce-eager", "--gpu-memory-utilization", "0.1", "--dtype", "float32"]

[engine]
venv = "/opt/vllm"
command = ["vllm", "serve"]

[env]
HF_HUB_OFFLINE = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
ONEDNN_MAX_CPU_ISA = "AVX512_CORE_BF16"
"#;
