//! Logs as engines wrote them, and what is made of them.

use crate::explain::{CauseKind, CauseKind::*, Explained, explain};
use crate::recipe::Recipe;
use crate::signs::SIGNS;

fn recipe() -> Recipe {
    Recipe::parse_one("name = 'tiny'\nsource = '/w/tiny'\nmin_engine_version = '0.18'").expect("holds")
}

const EXIT_1: Option<i32> = Some(1 << 8);

#[track_caller]
fn explained(log: &str, status: Option<i32>) -> Explained {
    let lines: Vec<String> = log.lines().map(str::to_owned).collect();
    let found = explain(&lines, status, &recipe());
    for line in [&found.text, &found.hint] {
        assert!(
            !line.is_empty() && line.len() < 600 && !line.contains(['\n', '\r', '{']),
            "{line:?}"
        );
    }
    found
}

/// What stands before every failure in a real log, and must not be taken for its cause.
const BEFORE: &str = "\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(APIServer pid=5047) INFO 12-01 00:06:27 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=5047) INFO 12-01 00:06:27 [api_utils.py:286] non-default args: {'model_tag': '/w/tiny', 'x': 'CUDA out of memory'}
(APIServer pid=5047) WARNING 12-01 00:06:27 [system_utils.py:255] Found ulimit of 20000 and failed: `OSError: [Errno 24]`
(APIServer pid=5047) WARNING 12-01 00:06:27 [x.py:1] MemoryError: only a warning
(Worker pid=13578) ERROR 12-01 00:08:04 [multiproc_executor.py:953]   File \"/x/MemoryError.py\", line 1
(Worker pid=13578) ERROR 12-01 00:08:04 [multiproc_executor.py:953]     raise MemoryError(
    f\"CUDA out of memory {x}\"
";

#[test]
fn recorded_failures_are_told_apart() {
    for (log, cause, text) in [
        (
            "usage: vllm [-h] [-v]\nvllm: error: unrecognized arguments: --max-modle-len 5",
            UnknownArgument,
            "the engine does not know an argument: vllm: error: unrecognized arguments: --max-modle-len 5",
        ),
        (
            "vllm serve: error: argument --dtype: invalid choice: 'f32' (choose from 'auto', 'half')",
            UnknownArgument,
            "the engine refuses an argument: vllm serve: error: argument --dtype: invalid choice",
        ),
        (
            "vllm: error: unrecognized arguments: --shutdown-timeout 15",
            EngineTooOld,
            "the engine is too old to drain",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, \
             User-specified max_model_len (999999) is greater than the derived max_model_len (max_position_embeddings=2048.0)",
            UnknownArgument,
            "--max-model-len is more than the model can: Value error, User-specified max_model_len (999999)",
        ),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': \
             '/w/tiny'. Use `repo_type` argument if needed.",
            WeightsMissing,
            "/w/tiny is not there: huggingface_hub",
        ),
        (
            "(Worker pid=7475) ERROR 12-01 00:07:05 [multiproc_executor.py:953] safetensors._safetensors_rust.SafetensorError: \
             Error while deserializing header: incomplete metadata, file not fully covered\n\
             RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
            WeightsMissing,
            "the weights of /w/tiny are damaged or cut short: safetensors",
        ),
        (
            "RuntimeError: Cannot find any model weights with `/w/tiny`",
            WeightsMissing,
            "there are no weights in /w/tiny",
        ),
        (
            "OSError: /w/tiny does not appear to have a file named config.json.",
            WeightsMissing,
            "a file of /w/tiny is missing",
        ),
        (
            "PermissionError: [Errno 13] Permission denied: '/w/tiny/config.json'",
            WeightsMissing,
            "/w/tiny can't be read by this user",
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the \
             specified revision on the local disk and outgoing traffic has been disabled.",
            HubUnreachable,
            "/w/tiny is not on this node's disk, and the hub is out of reach",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66)",
            HubUnreachable,
            "/w/tiny is gated",
        ),
        (
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/o/m.",
            HubUnreachable,
            "/w/tiny is gated",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            HubUnreachable,
            "the hub can't be reached from this node",
        ),
        (
            "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab file",
            TokenizerMissing,
            "the model's vocabulary file is missing",
        ),
        (
            "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
            TokenizerMissing,
            "the model's tokenizer is missing",
        ),
        (
            "(EngineCore pid=1) ERROR 12-01 00:07:05 [core.py:708] ValueError: Free memory on device cuda:0 (20.1/93.1 GiB) on \
             startup is less than desired GPU memory utilization (0.92, 85.65 GiB). Decrease GPU memory utilization",
            GpuMemory,
            "not enough free memory on a GPU: ValueError: Free memory on device cuda:0 (20.1/93.1 GiB)",
        ),
        (
            "(EngineCore_DP0 pid=1) ERROR 11-05 12:19:32 [core.py:708] torch.OutOfMemoryError: CUDA out of memory. Tried to \
             allocate 896.00 MiB. GPU 0 has a total capacity of 93.09 GiB of which 739.81 MiB is free.",
            GpuMemory,
            "a GPU's memory did not suffice: torch.OutOfMemoryError",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            GpuMemory,
            "the weights leave no memory for the cache",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (4.5 GiB KV cache is needed, \
             which is larger than the available KV cache memory (1.7 GiB).",
            GpuMemory,
            "the cache that is left is too small for one whole context",
        ),
        (
            "  Value error, World size (4) is larger than the number of available GPUs (1) in this node. If this is",
            TooFewGpus,
            "the engine was told to use more GPUs than the job has here: Value error, World size (4)",
        ),
        (
            "RuntimeError: No CUDA GPUs are available",
            TooFewGpus,
            "the engine sees no GPU",
        ),
        (
            "RuntimeError: Failed to infer device type, please set the environment variable",
            TooFewGpus,
            "the engine sees no GPU",
        ),
        (
            "ValueError: Available memory on node 0 (5.0/22.9 GiB) on startup is less than desired CPU memory utilization \
             (0.92, 21.1 GiB).",
            OutOfMemory,
            "not enough free memory on the node",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed.",
            OutOfMemory,
            "killed by the job's memory limit",
        ),
        (
            "ModuleNotFoundError: No module named 'vllm'",
            EngineNotFound,
            "vLLM is not in this Python environment",
        ),
        (
            "/bin/bash: /opt/v/bin/vllm: /root/py/bin/python: bad interpreter: Permission denied",
            EngineNotFound,
            "the engine's Python can't be started",
        ),
        (
            "ERROR: Unable to locate a modulefile for 'vllm/9'",
            EngineNotFound,
            "the recipe's module is not on this node",
        ),
        (
            "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
            EngineNotFound,
            "a library that the engine needs",
        ),
        (
            "but Transformers does not recognize this architecture. This could be because of an issue",
            EngineTooOld,
            "the engine does not know this model",
        ),
        (
            "OSError: [Errno 98] Address already in use",
            EngineDied,
            "a port or socket that the engine wants is taken",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            EngineDied,
            "a file system is full",
        ),
    ] {
        let found = explained(&format!("{BEFORE}{log}"), EXIT_1);
        assert_eq!(found.cause, cause, "{log}\n{found:?}");
        assert!(found.text.starts_with(text), "{log}\n{found:?}");
    }
}

#[test]
fn a_status_tells_what_a_log_does_not() {
    for (log, status, cause, text) in [
        (
            "",
            Some(127 << 8),
            EngineNotFound,
            "vllm can't be started on this node (exit code 127)",
        ),
        (
            "",
            Some(126 << 8),
            EngineNotFound,
            "vllm can't be started on this node (exit code 126)",
        ),
        (
            "loading",
            Some(9),
            OutOfMemory,
            "the engine ended: killed (SIGKILL), most likely",
        ),
        (
            "loading",
            Some(4),
            EngineDied,
            "the engine ended: an instruction that this CPU lacks",
        ),
        (
            "loading",
            Some(11 | 0x80),
            EngineDied,
            "the engine ended: a segmentation fault",
        ),
        ("loading", Some(42), EngineDied, "the engine ended by signal 42"),
        (
            "loading",
            Some(0),
            EngineDied,
            "the engine ended by itself with exit code 0",
        ),
        (
            "",
            Some(3 << 8),
            EngineDied,
            "the engine ended by itself with exit code 3",
        ),
        ("", None, EngineDied, "the engine failed"),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}",
            EXIT_1,
            OutOfMemory,
            "one of the engine's processes ended: killed (SIGKILL)",
        ),
        (
            "(EngineCore pid=1) ERROR 12-01 00:07:05 [multiproc_executor.py:316] Worker proc VllmWorker-0 died unexpectedly \
             (exit code: -4), shutting down executor.",
            EXIT_1,
            EngineDied,
            "one of the engine's processes ended: an instruction that this CPU lacks",
        ),
    ] {
        let found = explained(log, status);
        assert_eq!(found.cause, cause, "{log} {status:?}");
        assert!(found.text.starts_with(text), "{log} {status:?}\n{found:?}");
    }
}

#[test]
fn what_is_not_known_is_told_in_the_logs_own_words() {
    let log = "\
Traceback (most recent call last):
  File \"/x/core.py\", line 5, in main
KeyError: 'layers.0.mlp'
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
";
    let found = explained(log, EXIT_1);
    assert_eq!(found.cause, EngineDied);
    assert_eq!(
        found.text,
        "the engine ended by itself with exit code 1: KeyError: 'layers.0.mlp'"
    );

    let found = explained(
        "RuntimeError: Engine core initialization failed. See root cause above.",
        EXIT_1,
    );
    assert!(found.text.ends_with("See root cause above."), "{found:?}");
}

#[test]
fn an_old_engine_is_called_old_whatever_it_fails_of() {
    let banner = "INFO 08-08 08:01:25 [api_server.py:1] vLLM API server version 0.10.1\n";
    let found = explained(&format!("{banner}KeyError: 'x'"), EXIT_1);
    assert_eq!(found.cause, EngineTooOld);
    assert_eq!(found.text, "the engine is version 0.10.1, and tiny needs 0.18");
    assert_eq!(
        explained(&format!("{BEFORE}KeyError: 'x'"), EXIT_1).cause,
        EngineDied
    );
}

#[test]
fn hostile_logs_give_one_short_line() {
    for log in [
        "ValueError: ".to_owned() + &"x".repeat(1_000_000),
        "\u{1b}[2J\u{1b}]0;title\u{7}ValueError: \u{0}\u{8}x".to_owned(),
        "ValueError: a\rValueError: b".to_owned(),
        "é".repeat(13) + "ValueError: ü",
        "Failed core proc(s): {'EngineCore': -99999999999999}".to_owned(),
    ] {
        explained(&log, EXIT_1);
    }
}

#[test]
fn every_sign_has_words_for_people() {
    for sign in SIGNS {
        assert!(
            sign.ways.iter().all(|way| !way.is_empty()) && !sign.what.is_empty() && !sign.hint.is_empty(),
            "{:?}",
            sign.ways
        );
    }
    let kinds: std::collections::HashSet<CauseKind> = SIGNS.iter().map(|sign| sign.cause).collect();
    assert_eq!(kinds.len(), 10, "every kind of cause has a sign");
}
