//! `STUB_FAIL`: the start failures that a user must be able to tell apart, each with the lines by which vLLM (or what
//! it is built on) tells them, the stage at which it does, and vLLM's exit code.
//!
//! Measured on vLLM 0.32: missing weights, an unknown repository offline, too large a context, an address in use,
//! an unknown flag, truncated weights. The others follow the libraries' own messages.

use crate::args::Options;
use crate::log::{self, Who};
use crate::script::Stage;

/// One way of not getting ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The path of the weights does not exist, so it is taken for a hub id.
    MissingWeights,
    /// A hub id that the cache lacks, with no network.
    Offline,
    /// A hub id behind a licence.
    Gated,
    /// A weight file that is too short.
    TruncatedWeights,
    /// The weights can't be read.
    UnreadableWeights,
    /// A flag that this vLLM doesn't have.
    UnrecognizedArg,
    /// `--max-model-len` beyond the model's.
    MaxLen,
    /// The address is taken.
    PortInUse,
    /// The engine process gave up, no cause told.
    EngineInit,
    /// Not enough GPU memory free at the start.
    GpuMemory,
    /// Out of GPU memory while loading.
    Oom,
    /// Nothing left for the KV cache.
    NoKvCache,
    /// Fewer GPUs than the tensor-parallel size.
    TooFewGpus,
    /// gpt-oss without its vocabulary file.
    Vocab,
    /// The tokenizer is missing.
    Tokenizer,
    /// A model class that this vLLM doesn't know.
    TooOld,
    /// The Python package is missing.
    NotInstalled,
}

/// Name in `STUB_FAIL`, stage, exit code.
const TABLE: &[(&str, Failure, Option<Stage>, u8)] = &[
    ("missing-weights", Failure::MissingWeights, Some(Stage::Config), 1),
    ("offline", Failure::Offline, Some(Stage::Config), 1),
    ("gated", Failure::Gated, Some(Stage::Config), 1),
    (
        "truncated-weights",
        Failure::TruncatedWeights,
        Some(Stage::Weights),
        1,
    ),
    (
        "unreadable-weights",
        Failure::UnreadableWeights,
        Some(Stage::Config),
        1,
    ),
    ("unrecognized-arg", Failure::UnrecognizedArg, None, 2),
    ("max-len", Failure::MaxLen, Some(Stage::Config), 1),
    ("port-in-use", Failure::PortInUse, None, 1),
    ("engine-init", Failure::EngineInit, Some(Stage::Weights), 1),
    ("gpu-memory", Failure::GpuMemory, Some(Stage::Config), 1),
    ("oom", Failure::Oom, Some(Stage::Weights), 1),
    ("no-kv-cache", Failure::NoKvCache, Some(Stage::Compile), 1),
    ("too-few-gpus", Failure::TooFewGpus, Some(Stage::Config), 1),
    ("vocab", Failure::Vocab, Some(Stage::Graphs), 1),
    ("tokenizer", Failure::Tokenizer, Some(Stage::Config), 1),
    ("too-old", Failure::TooOld, Some(Stage::Config), 1),
    ("not-installed", Failure::NotInstalled, None, 1),
];

impl std::str::FromStr for Failure {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        TABLE.iter().find(|row| row.0 == text).map(|row| row.1).ok_or(())
    }
}

impl Failure {
    /// Every name, for messages and `--help`.
    pub fn names() -> String {
        TABLE.iter().map(|row| row.0).collect::<Vec<_>>().join(", ")
    }

    fn row(self) -> &'static (&'static str, Failure, Option<Stage>, u8) {
        TABLE
            .iter()
            .find(|row| row.1 == self)
            .expect("every failure has a row")
    }

    /// The stage at whose end it shows; `None` is before anything is loaded.
    pub fn stage(self) -> Option<Stage> {
        self.row().2
    }

    /// vLLM's exit code for it.
    pub fn code(self) -> u8 {
        self.row().3
    }

    /// Writes what vLLM writes.
    pub fn tell(self, options: &Options) {
        let model = &options.model;
        match self {
            Self::UnrecognizedArg => {
                log::line("usage: vllm [-h] [-v] {chat,complete,serve,bench} ...");
                log::line("vllm: error: unrecognized arguments: --no-such-flag");
            }
            Self::NotInstalled => raised("ModuleNotFoundError: No module named 'vllm'"),
            Self::PortInUse => raised("OSError: [Errno 98] Address already in use"),
            Self::MissingWeights => raised(format_args!(
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or \
                 'namespace/repo_name': '{model}'. Use `repo_type` argument if needed."
            )),
            Self::Offline => raised(format_args!(
                "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder \
                 for the specified revision on the local disk and outgoing traffic has been disabled ({model})."
            )),
            Self::Gated => raised(format_args!(
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url \
                 https://huggingface.co/{model}/resolve/main/config.json. Access to model {model} is restricted."
            )),
            Self::UnreadableWeights => raised(format_args!(
                "PermissionError: [Errno 13] Permission denied: '{model}/config.json'"
            )),
            Self::Tokenizer => raised(format_args!(
                "OSError: Can't load tokenizer for '{model}'. Make sure '{model}' is the correct path to a \
                 directory containing all relevant files for a tokenizer."
            )),
            Self::MaxLen => raised(format_args!(
                "ValueError: User-specified max_model_len ({}) is greater than the derived max_model_len \
                 (max_position_embeddings=2048.0 or model_max_length=None in model's config.json).",
                options.max_model_len
            )),
            Self::TooOld => raised(
                "ValueError: Model architectures ['FutureForCausalLM'] are not supported for now. Supported \
                 architectures: ['LlamaForCausalLM']",
            ),
            Self::TooFewGpus => core(
                "ValueError: World size (2) is larger than the number of available GPUs (1) in this node.",
            ),
            Self::GpuMemory => core(
                "ValueError: Free memory on device cuda:0 (12.31/94.97 GiB) on startup is less than desired GPU \
                 memory utilization (0.92, 87.37 GiB). Decrease GPU memory utilization or reduce GPU memory used \
                 by other processes.",
            ),
            Self::Oom => core(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity \
                 of 94.97 GiB of which 1.19 GiB is free.",
            ),
            Self::NoKvCache => core(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` \
                 when initializing the engine.",
            ),
            Self::TruncatedWeights => {
                core(
                    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
                );
            }
            Self::EngineInit => core("RuntimeError: worker process failed"),
            Self::Vocab => raised(
                "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load \
                 vocab file",
            ),
        }
    }
}

/// An exception in the API server.
fn raised(text: impl std::fmt::Display) {
    log::line("Traceback (most recent call last):");
    log::line("  File \"vllm/entrypoints/cli/main.py\", line 73, in main");
    log::line(text);
}

/// An exception in the engine process, and what the API server makes of it.
fn core(text: impl std::fmt::Display) {
    log::error(Who::Core, "core.py:866", "EngineCore failed to start.");
    log::error(Who::Core, "core.py:866", "Traceback (most recent call last):");
    log::error(Who::Core, "core.py:866", text);
    raised("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for (name, failure, ..) in TABLE {
            assert_eq!(name.parse(), Ok(*failure));
            assert_eq!(failure.row().0, *name);
        }
    }
}
