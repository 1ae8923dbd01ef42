//! The engine's environment, made anew: what a program needs to run as this user, what the job passes on, what the recipe says.

use std::collections::BTreeMap;
use std::path::Path;

/// Of the runner's own environment, which is srun's: these and no others.
const KEPT: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_CLUSTER_NAME",
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_STEP_GPUS",
];

/// And whatever begins so.
const KEPT_BEGINNINGS: &[&str] = &["NVIDIA_"];

/// Never, whoever says so: the guard asks for the key, and an engine that asked for another would refuse the guard.
const NEVER: &[&str] = &["VLLM_API_KEY"];

/// Where the variables come from; a later one wins.
pub struct Sources<'a> {
    /// The runner's own.
    pub runner: &'a BTreeMap<String, String>,
    /// From the job, as far as the recipe asked for it.
    pub passed: &'a BTreeMap<String, String>,
    /// Ours and the recipe's.
    pub call: &'a BTreeMap<String, String>,
    /// The engine's temporary files go here whatever the others say: vLLM leaves some lying, and this folder is removed.
    pub tmp: &'a Path,
}

/// All of it.
pub fn environment(sources: &Sources<'_>) -> BTreeMap<String, String> {
    let kept = sources.runner.iter().filter(|(name, _)| {
        KEPT.contains(&name.as_str())
            || KEPT_BEGINNINGS
                .iter()
                .any(|beginning| name.starts_with(beginning))
    });
    let layers = kept.chain(sources.passed).chain(sources.call);
    let mut all: BTreeMap<String, String> = layers
        .filter(|(name, value)| is_usable(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    all.insert("TMPDIR".to_owned(), sources.tmp.display().to_string());
    for name in NEVER {
        all.remove(*name);
    }
    all
}

/// What execve can carry. Passed variables come from outside and are not trusted to be such.
fn is_usable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn only_what_is_needed_and_asked_for_gets_through() {
        let runner = map(&[
            ("PATH", "/bin"),
            ("LD_PRELOAD", "/x"),
            ("OPENAI_API_KEY", "k"),
            ("NVIDIA_TF32_OVERRIDE", "1"),
        ]);
        let passed = map(&[
            ("HF_TOKEN", "t"),
            ("VLLM_PORT", "1"),
            ("VLLM_API_KEY", "mine"),
            ("a=b", "c"),
            ("NUL", "a\0b"),
        ]);
        let call = map(&[("VLLM_PORT", "18200")]);
        let all = environment(&Sources {
            runner: &runner,
            passed: &passed,
            call: &call,
            tmp: Path::new("/p/t"),
        });
        let expected = map(&[
            ("PATH", "/bin"),
            ("NVIDIA_TF32_OVERRIDE", "1"),
            ("HF_TOKEN", "t"),
            ("VLLM_PORT", "18200"),
            ("TMPDIR", "/p/t"),
        ]);
        assert_eq!(all, expected);
    }

    #[test]
    fn temporary_files_go_into_the_folder_that_is_removed() {
        let none = BTreeMap::new();
        let call = map(&[("TMPDIR", "/scratch")]);
        let all = environment(&Sources {
            runner: &none,
            passed: &none,
            call: &call,
            tmp: Path::new("/p/t"),
        });
        assert_eq!(all, map(&[("TMPDIR", "/p/t")]));
    }
}
