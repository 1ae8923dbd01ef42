//! The engine's log lines as somebody who waits wants to see them.

use crate::logline::{self, Level, cut};

/// The longest line shown, in characters: with state and seconds before it, it fits a terminal twice.
const MOST: usize = 120;

/// Beginnings and parts of lines that tell nothing to somebody who waits.
const NOISE: &[&str] = &[
    "non-default args",
    "Traceback (most recent call last)",
    "Triton is installed",
    "HTTP/1.1\"",
    "Warning:",
    "LD_PRELOAD",
    "Route: /",
    "Available routes are",
    "IR op priority",
    "distributed_init_method",
    "assigned as DP rank",
    "node_rank=",
    "thread binding",
    "Torch threads",
    "custom fusions",
    "Auto-prefetch",
    "Supported tasks",
    "Scale-out endpoints",
    "template content format",
];

/// The part of a log line that tells a person how far the engine is; `None` for what tells nothing (banners, warnings, the
/// inside of tracebacks, access logs). Process, level, time and place are taken off, and of a progress bar the last state is
/// kept. One line without control characters, at most 120 characters long.
pub fn meaningful_line(line: &str) -> Option<String> {
    let read = logline::read(line);
    let text = match read.level {
        Level::Debug | Level::Warning => return None,
        Level::Info | Level::Error | Level::None => read.text.as_str(),
    };
    // "Initializing a V1 LLM engine (v0.32.0) with config: …": some kilobytes of settings follow.
    let text = text.split(" with config:").next().unwrap_or(text);
    let indented = text.starts_with(' ');
    let words = text.chars().filter(|c| c.is_alphabetic()).count();
    let banner = text.contains(['█', '▄', '▀']) && !text.contains('%');
    // `[W1201 00:07:05 utils.cpp:68]`, `[rank0]: `
    let foreign = text.starts_with("[W") || text.starts_with("[I") || text.starts_with("[rank");
    if indented || words < 3 || banner || foreign || NOISE.iter().any(|noise| text.contains(noise)) {
        return None;
    }
    Some(cut(text.trim(), MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_something_is_kept() {
        for (line, want) in [
            (
                "(Worker pid=7475) INFO 12-01 00:07:05 [cpu_model_runner.py:68] Starting to load model /w/tiny...",
                "Starting to load model /w/tiny...",
            ),
            (
                "(EngineCore pid=6138) INFO 12-01 00:06:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
                 model='/w/tiny', speculative_config=None",
                "Initializing a V1 LLM engine (v0.32.0)",
            ),
            (
                "Loading safetensors checkpoint shards:   0% Completed | 0/15 [00:00<?, ?it/s]\r\
                 Loading safetensors checkpoint shards:  53% Completed | 8/15 [00:09<00:08,  1.2s/it]",
                "Loading safetensors checkpoint shards:  53% Completed | 8/15 [00:09<00:08,  1.2s/it]",
            ),
            (
                "Capturing CUDA graph shapes:  98%|█████████▊| 81/83 [01:40<00:02, 1.27s/it]",
                "Capturing CUDA graph shapes:  98%|█████████▊| 81/83 [01:40<00:02, 1.27s/it]",
            ),
            (
                "INFO:     Application startup complete.",
                "Application startup complete.",
            ),
            (
                "(Worker pid=7) ERROR 12-01 00:07:05 [multiproc_executor.py:953] WorkerProc failed to start.",
                "WorkerProc failed to start.",
            ),
            ("stub engine: loading, 3 of 5", "stub engine: loading, 3 of 5"),
            ("ValueError: \u{1b}[31mno\u{1b}[0m", "ValueError: no"),
        ] {
            assert_eq!(meaningful_line(line).as_deref(), Some(want));
        }
    }

    #[test]
    fn what_tells_nothing_is_dropped() {
        for line in [
            "",
            "   ",
            "(APIServer pid=1) INFO 12-01 00:03:09 [api_utils.py:347] ",
            "(APIServer pid=1) INFO 12-01 00:03:09 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
            "(APIServer pid=1) INFO 12-01 00:03:09 [api_utils.py:286] non-default args: {'model_tag': '/w'}",
            "(APIServer pid=1) WARNING 12-01 00:03:09 [system_utils.py:255] Found ulimit of 20000",
            "(EngineCore pid=6138) INFO 12-01 00:06:48 [ompmultiprocessing.py:185] \treserved_cpus=[1]",
            "(Worker pid=7) ERROR 12-01 00:07:05 [multiproc_executor.py:953]     worker = WorkerProc(*args, **kwargs)",
            "(Worker pid=7) ERROR 12-01 00:07:05 [multiproc_executor.py:953] Traceback (most recent call last):",
            "  File \"/x/y.py\", line 5, in main",
            "    ~~~~~^^^^",
            "INFO:     127.0.0.1:51234 - \"GET /health HTTP/1.1\" 200 OK",
            "/x/dispatcher.py:138: FutureWarning: `torch.distributed.reduce_op` is deprecated",
            "[W1201 00:07:05.794967052 utils.cpp:68] Warning: NUMA binding",
            "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
            "DEBUG 12-01 00:07:05 [x.py:1] something",
            "----------",
            "(APIServer pid=1) INFO 12-01 00:10:40 [launcher.py:54] Route: /v1/models, Methods: GET",
        ] {
            assert_eq!(meaningful_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut() {
        let line = meaningful_line(&"word ".repeat(1000)).expect("kept");
        assert!(line.chars().count() <= MOST && line.ends_with('…'));
    }
}
