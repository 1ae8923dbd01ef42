//! What engines write when they fail, and what it means. Recorded from vLLM 0.32 and taken from reports of older ones.

use crate::explain::CauseKind;
use crate::explain::CauseKind::*;

/// What tells in a line of a log why an engine failed.
pub(crate) struct Sign {
    /// The ways in which it is written; a line shows one if it holds all its parts, in any order. `{source}` is the
    /// recipe's.
    pub ways: &'static [&'static [&'static str]],
    pub cause: CauseKind,
    /// What happened. `{source}` is the recipe's.
    pub what: &'static str,
    /// What to do about it; `{recipe}` is its name, `{source}` its source.
    pub hint: &'static str,
}

const fn sign(
    ways: &'static [&'static [&'static str]],
    cause: CauseKind,
    what: &'static str,
    hint: &'static str,
) -> Sign {
    Sign {
        ways,
        cause,
        what,
        hint,
    }
}

const FREE_GPU: &str =
    "see who holds the GPU (nvidia-smi); or lower --gpu-memory-utilization, or take a larger GPU";
const SHORTER: &str = "lower --max-model-len, raise --gpu-memory-utilization, or take a larger GPU";
const MORE_GPUS: &str = "ask Slurm for as many GPUs as the recipe's arguments use (--gres=gpu:N), or lower --tensor-parallel-size";
const NO_GPU: &str = "ask Slurm for a GPU (--gres=gpu:1), or have an admin look at the driver of this node";
const ARGUMENT: &str = "correct it in the recipe's args or in --serve-args";
const GATED: &str =
    "accept its terms on the hub, set HF_TOKEN in the job, and name HF_TOKEN in the recipe's pass_env";
const OFFLINE: &str = "download it first (hf download {source}) into the HF_HOME that the job uses, or write its path into the recipe's source";
const NETWORK: &str = "let this node reach the hub, or download the model first and set HF_HUB_OFFLINE=1";
const VOCABULARY: &str =
    "put o200k_base.tiktoken into a folder and set TIKTOKEN_ENCODINGS_BASE to it in the recipe's [env]";
const TOKENIZER: &str = "copy the model's tokenizer files beside its weights, or name them with --tokenizer";
const WEIGHTS: &str = "look at {source} from this node; copy or download the model again";
const SOURCE: &str = "correct the recipe's source, or put the model there; it must be visible from this node";
const ENGINE: &str = "set engine.venv or engine.module in the recipe to where vLLM is on this node";
const UPGRADE: &str = "use a newer vLLM in the recipe's engine";
const MORE_MEMORY: &str = "give the job more memory (--mem)";

/// In the order in which they count: what names its cause most exactly comes first.
pub(crate) const SIGNS: &[Sign] = &[
    // The engine itself.
    sign(
        &[&["unrecognized arguments:", "--shutdown-timeout"]],
        EngineTooOld,
        "the engine is too old to drain when told to end",
        "slurm-serve needs vLLM 0.18 or newer; use one in the recipe's engine",
    ),
    sign(
        &[&["unrecognized arguments:"]],
        UnknownArgument,
        "the engine does not know an argument",
        ARGUMENT,
    ),
    sign(
        &[&["error: argument "], &["error: ambiguous option"]],
        UnknownArgument,
        "the engine refuses an argument",
        ARGUMENT,
    ),
    sign(
        &[&["User-specified max_model_len", "greater than the derived"]],
        UnknownArgument,
        "--max-model-len is more than the model can",
        "lower --max-model-len",
    ),
    sign(
        &[&["No module named 'vllm'"]],
        EngineNotFound,
        "vLLM is not in this Python environment",
        ENGINE,
    ),
    sign(
        &[&["bad interpreter"]],
        EngineNotFound,
        "the engine's Python can't be started by this user",
        ENGINE,
    ),
    sign(
        &[&["Unable to locate a modulefile"], &["module(s) are unknown"]],
        EngineNotFound,
        "the recipe's module is not on this node",
        ENGINE,
    ),
    sign(
        &[&["module: command not found"]],
        EngineNotFound,
        "this node has no environment modules",
        ENGINE,
    ),
    sign(
        &[&["ImportError:", "cannot open shared object file"]],
        EngineNotFound,
        "a library that the engine needs is not on this node",
        "load what it needs with engine.module in the recipe, or have an admin install it",
    ),
    sign(
        &[
            &["does not recognize this architecture"],
            &["Model architectures", "are not supported for now"],
        ],
        EngineTooOld,
        "the engine does not know this model",
        UPGRADE,
    ),
    // GPUs and their memory.
    sign(
        &[
            &["World size (", "larger than the number of"],
            &["number of required GPUs exceeds"],
            &["invalid device ordinal"],
        ],
        TooFewGpus,
        "the engine was told to use more GPUs than the job has here",
        MORE_GPUS,
    ),
    sign(
        &[
            &["No CUDA GPUs are available"],
            &["Failed to infer device type"],
            &["Found no NVIDIA driver"],
        ],
        TooFewGpus,
        "the engine sees no GPU",
        NO_GPU,
    ),
    sign(
        &[
            &["Free memory on device", "than desired"],
            &["Free memory on device", "budget"],
        ],
        GpuMemory,
        "not enough free memory on a GPU",
        FREE_GPU,
    ),
    sign(
        &[
            &["CUDA out of memory"],
            &["CUDA error: out of memory"],
            &["torch.OutOfMemoryError"],
            &["HIP out of memory"],
        ],
        GpuMemory,
        "a GPU's memory did not suffice",
        FREE_GPU,
    ),
    sign(
        &[&["No available memory for the cache blocks"]],
        GpuMemory,
        "the weights leave no memory for the cache",
        SHORTER,
    ),
    sign(
        &[
            &["larger than the available KV cache"],
            &["larger than the maximum number of tokens that can be stored in KV cache"],
        ],
        GpuMemory,
        "the cache that is left is too small for one whole context",
        SHORTER,
    ),
    sign(
        &[&["Mamba cache", "max_cudagraph_capture_size"]],
        GpuMemory,
        "the memory that is left is too small for the CUDA graphs",
        "lower --max-cudagraph-capture-size",
    ),
    // The node's memory.
    sign(
        &[&["than desired CPU memory utilization"]],
        OutOfMemory,
        "not enough free memory on the node",
        "lower --gpu-memory-utilization (on a CPU it means the node's memory), or give the job more memory (--mem)",
    ),
    sign(
        &[&["oom_kill event"]],
        OutOfMemory,
        "killed by the job's memory limit",
        MORE_MEMORY,
    ),
    sign(
        &[
            &["DefaultCPUAllocator: can't allocate memory"],
            &["Cannot allocate memory"],
            &["MemoryError"],
        ],
        OutOfMemory,
        "the job's memory did not suffice",
        MORE_MEMORY,
    ),
    // Vocabulary and tokenizer, before the hub: they come from one too.
    sign(
        &[
            &["loading vocab file"],
            &["HarmonyError"],
            &["TIKTOKEN_ENCODINGS_BASE"],
        ],
        TokenizerMissing,
        "the model's vocabulary file is missing",
        VOCABULARY,
    ),
    sign(
        &[&["invalid tiktoken vocab file"]],
        TokenizerMissing,
        "the model's vocabulary file is damaged",
        VOCABULARY,
    ),
    sign(
        &[
            &["load tokenizer for"],
            &["instantiate the backend tokenizer"],
            &["Failed to load the tokenizer"],
        ],
        TokenizerMissing,
        "the model's tokenizer is missing",
        TOKENIZER,
    ),
    // The hub.
    sign(
        &[&["GatedRepoError"], &["gated repo"]],
        HubUnreachable,
        "{source} is gated",
        GATED,
    ),
    sign(
        &[&["RepositoryNotFoundError"]],
        HubUnreachable,
        "the hub knows no {source}, or does not show it to this user",
        "correct the recipe's source; a private one needs HF_TOKEN in the job and in the recipe's pass_env",
    ),
    sign(
        &[
            &["LocalEntryNotFoundError"],
            &["OfflineModeIsEnabled"],
            &["outgoing traffic has been disabled"],
        ],
        HubUnreachable,
        "{source} is not on this node's disk, and the hub is out of reach",
        OFFLINE,
    ),
    sign(
        &[
            &["couldn't connect to", "huggingface.co"],
            &["Max retries exceeded", "huggingface.co"],
            &["Temporary failure in name resolution"],
        ],
        HubUnreachable,
        "the hub can't be reached from this node",
        NETWORK,
    ),
    // The weights.
    sign(
        &[&["Repo id must be in the form"]],
        WeightsMissing,
        "{source} is not there",
        SOURCE,
    ),
    sign(
        &[&["SafetensorError"], &["incomplete metadata"]],
        WeightsMissing,
        "the weights of {source} are damaged or cut short",
        WEIGHTS,
    ),
    sign(
        &[&["Cannot find any model weights"]],
        WeightsMissing,
        "there are no weights in {source}",
        WEIGHTS,
    ),
    sign(
        &[
            &["does not appear to have a file named"],
            &["No such file or directory", "{source}"],
        ],
        WeightsMissing,
        "a file of {source} is missing",
        WEIGHTS,
    ),
    sign(
        &[&["weights were not initialized from checkpoint"]],
        WeightsMissing,
        "the weights of {source} are incomplete",
        WEIGHTS,
    ),
    sign(
        &[&["Permission denied", "{source}"]],
        WeightsMissing,
        "{source} can't be read by this user",
        SOURCE,
    ),
    // What else stops it.
    sign(
        &[&["No space left on device"]],
        EngineDied,
        "a file system is full",
        "make room in /tmp and /dev/shm of the node, or name another cache in the recipe's [env]",
    ),
    sign(
        &[&["Address already in use"]],
        EngineDied,
        "a port or socket that the engine wants is taken",
        "try again; if it comes back, tell an admin",
    ),
    sign(
        &[&["CUDA error: no kernel image is available"]],
        EngineDied,
        "the engine was not built for this GPU",
        "use a vLLM built for it in the recipe's engine",
    ),
    sign(
        &[&["CUDA driver version is insufficient"]],
        EngineDied,
        "this node's driver is older than the engine needs",
        "use a vLLM built for an older CUDA in the recipe's engine, or have an admin update the driver",
    ),
];

/// Signals that say something: number, what happened, what to do.
pub(crate) const SIGNALS: &[(i32, CauseKind, &str, &str)] = &[
    (
        9,
        OutOfMemory,
        "killed (SIGKILL), most likely by the job's memory limit",
        MORE_MEMORY,
    ),
    (
        4,
        EngineDied,
        "an instruction that this CPU lacks (SIGILL)",
        "use a vLLM built for this CPU; on a CPU, --dtype float32 avoids most of them",
    ),
    (
        7,
        EngineDied,
        "a bus error (SIGBUS)",
        "look whether /dev/shm of the node is full",
    ),
    (
        11,
        EngineDied,
        "a segmentation fault (SIGSEGV)",
        "its log says more",
    ),
    (6, EngineDied, "it aborted (SIGABRT)", "its log says more"),
    (
        15,
        EngineDied,
        "ended by a SIGTERM that slurm-serve did not send",
        "its log says more",
    ),
];
