//! The flags of `vllm serve`: which are ours, and how many values the others take.
//!
//! The lists are those of vLLM 0.32's own parser (`make_arg_parser`). A flag that is not in them is let through, with at
//! most one value: another release may have it, and vLLM refuses what it doesn't know in a clear line.

/// A flag that slurm-serve sets itself, or that would lead requests past it.
pub(crate) struct Owned {
    /// As vLLM spells it, dashes in front.
    pub flag: &'static str,
    /// vLLM's one-dash short form; empty if it has none.
    pub short: &'static str,
    /// Why it is refused; follows the flag's name.
    pub why: &'static str,
}

const SET: &str = "is set by slurm-serve";
const GUARD: &str = "belongs to the guard in front of the engine";
const NODES: &str = "spreads a model over nodes, and slurm-serve runs each on one node";
const TLS: &str = "has no use behind the guard, which reaches the engine over a Unix socket";
const NAMES: &str = "would serve under names that nobody announces; write a recipe for each name instead";

/// Every flag that is refused, in recipes and behind `--serve-args` alike.
#[rustfmt::skip]
pub(crate) const OWNED: &[Owned] = &[
    Owned { flag: "--host", short: "", why: SET },
    Owned { flag: "--port", short: "", why: SET },
    Owned { flag: "--uds", short: "", why: SET },
    Owned { flag: "--served-model-name", short: "", why: "is set by slurm-serve; use --serve-name, or the recipe's name and aliases" },
    Owned { flag: "--shutdown-timeout", short: "", why: "is set by slurm-serve; use drain_timeout in a recipe" },
    Owned { flag: "--model", short: "", why: "is set by slurm-serve; it is the recipe's source" },
    Owned { flag: "--api-key", short: "", why: GUARD },
    Owned { flag: "--root-path", short: "", why: GUARD },
    Owned { flag: "--middleware", short: "", why: GUARD },
    Owned { flag: "--ssl-keyfile", short: "", why: TLS },
    Owned { flag: "--ssl-certfile", short: "", why: TLS },
    Owned { flag: "--ssl-ca-certs", short: "", why: TLS },
    Owned { flag: "--ssl-cert-reqs", short: "", why: TLS },
    Owned { flag: "--ssl-ciphers", short: "", why: TLS },
    Owned { flag: "--enable-ssl-refresh", short: "", why: TLS },
    Owned { flag: "--no-enable-ssl-refresh", short: "", why: TLS },
    Owned { flag: "--grpc", short: "", why: "would replace the HTTP interface that the guard speaks" },
    Owned { flag: "--grpc-port", short: "", why: "would open a way past the guard" },
    Owned { flag: "--config", short: "", why: "would bring in flags from a file; write them out instead" },
    Owned { flag: "--omni", short: "", why: "would hand over to another program" },
    Owned { flag: "--lora-modules", short: "", why: NAMES },
    Owned { flag: "--headless", short: "", why: NODES },
    Owned { flag: "--nnodes", short: "-n", why: NODES },
    Owned { flag: "--node-rank", short: "-r", why: NODES },
    Owned { flag: "--master-addr", short: "", why: NODES },
    Owned { flag: "--master-port", short: "", why: NODES },
    Owned { flag: "--data-parallel-address", short: "-dpa", why: NODES },
    Owned { flag: "--data-parallel-rpc-port", short: "-dpp", why: NODES },
    Owned { flag: "--data-parallel-rank", short: "-dpn", why: NODES },
    Owned { flag: "--data-parallel-start-rank", short: "-dpr", why: NODES },
    Owned { flag: "--data-parallel-hybrid-lb", short: "-dph", why: NODES },
    Owned { flag: "--no-data-parallel-hybrid-lb", short: "", why: NODES },
    Owned { flag: "--data-parallel-external-lb", short: "-dpe", why: NODES },
    Owned { flag: "--no-data-parallel-external-lb", short: "", why: NODES },
    Owned { flag: "--data-parallel-multi-port-external-lb", short: "-dpm", why: NODES },
    Owned { flag: "--data-parallel-supervisor-port", short: "", why: NODES },
    Owned { flag: "--hf-token", short: "", why: "would show a key to everybody on the node; pass HF_TOKEN on with the recipe's pass_env" },
    Owned { flag: "--help", short: "-h", why: "would print a text instead of serving" },
    Owned { flag: "--version", short: "-v", why: "would print a text instead of serving" },
];

/// Whatever begins like this is ours, also in releases that have more of them.
pub(crate) const OWNED_FAMILIES: &[(&str, &str)] = &[("--ssl-", TLS)];

/// How many values a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    /// It is a switch.
    None,
    One,
    /// At least one.
    Many,
    /// Not a flag of the release that the lists come from: none or one.
    Unknown,
}

/// Looks up a flag as vLLM normalises it: dashes, no value, no `.key`.
pub(crate) fn arity(flag: &str) -> Arity {
    let switch = flag.strip_prefix("--no-");
    if SWITCHES.contains(&flag)
        || switch.is_some_and(|rest| SWITCHES.iter().any(|s| s.get(2..) == Some(rest)))
    {
        Arity::None
    } else if ONE_VALUE.contains(&flag) {
        Arity::One
    } else if MANY_VALUES.contains(&flag) {
        Arity::Many
    } else {
        Arity::Unknown
    }
}

/// Flags without a value; `--no-…` of each exists too.
#[rustfmt::skip]
const SWITCHES: &[&str] = &[
    "--aggregate-engine-logging", "--allow-credentials", "--allow-deprecated-quantization",
    "--async-scheduling", "--cohere-is-reasoning-model", "--cudagraph-metrics", "--dcp-q-replicate",
    "--disable-cascade-attn", "--disable-chunked-mm-input", "--disable-custom-all-reduce",
    "--disable-fastapi-docs", "--disable-hybrid-kv-cache-manager", "--disable-log-stats",
    "--disable-nccl-for-dp-synchronization", "--disable-sliding-window", "--disable-uvicorn-access-log",
    "--enable-auto-tool-choice", "--enable-batch-sharded-sampling", "--enable-chunked-prefill",
    "--enable-cumem-allocator", "--enable-dbo", "--enable-elastic-ep", "--enable-ep-weight-filter",
    "--enable-eplb", "--enable-expert-parallel", "--enable-fault-tolerance",
    "--enable-flash-late-interaction", "--enable-flashinfer-autotune", "--enable-force-include-usage",
    "--enable-hc-sp", "--enable-layerwise-nvtx-tracing", "--enable-log-deltas", "--enable-log-outputs",
    "--enable-log-requests", "--enable-logging-iteration-details", "--enable-lora",
    "--enable-mamba-cache-stochastic-rounding", "--enable-mamba-shared-prefix-checkpoint",
    "--enable-mfu-metrics", "--enable-mixed-moe-lora-format", "--enable-mm-embeds",
    "--enable-moe-shared-loras", "--enable-nccl-comm-suspend", "--enable-offline-docs",
    "--enable-per-request-metrics", "--enable-prefix-caching", "--enable-prompt-embeds",
    "--enable-prompt-tokens-details", "--enable-request-id-headers", "--enable-return-routed-experts",
    "--enable-scale-out", "--enable-server-load-tracking", "--enable-shm-tensor-arena",
    "--enable-sleep-mode", "--enable-tokenizer-info-endpoint", "--enable-tower-connector-lora",
    "--enable-trace-replay", "--enforce-eager", "--exclude-tools-when-tool-choice-none",
    "--fail-on-environ-validation", "--fully-sharded-loras", "--interleave-mm-strings",
    "--jit-monitor-verbose", "--kv-cache-metrics", "--kv-sharing-fast-prefill", "--language-model-only",
    "--log-error-stack", "--long-prefill-token-threshold-adaptive", "--mm-device-do-normalize",
    "--mm-encoder-only", "--numa-bind", "--ray-workers-use-nsight", "--return-sampling-mask",
    "--return-tokens-as-token-ids", "--scheduler-reserve-full-isl", "--skip-mm-profiling",
    "--skip-tokenizer-init", "--sleep-mode-offload-cudagraph", "--specialize-active-lora",
    "--swa-bounded-replay", "--tokens-only", "--trust-remote-code", "--trust-request-chat-template",
    "--trust-request-mm-kwargs", "--use-fp64-gumbel", "--use-replayssm", "--use-tqdm-on-load", "-ep",
];

/// Flags that take one value or more.
#[rustfmt::skip]
const MANY_VALUES: &[&str] = &[
    "--allowed-media-domains", "--collect-detailed-traces", "--cpu-offload-params",
    "--cudagraph-capture-sizes", "--ignore-patterns", "--kv-cache-dtype-skip-layers",
    "--logits-processors", "--lora-target-modules", "--numa-bind-cpus", "--numa-bind-nodes",
    "--offload-params", "--sleep-preserve-parameter-names",
];

/// Flags that take one value.
#[rustfmt::skip]
const ONE_VALUE: &[&str] = &[
    "--additional-config", "--all2all-backend", "--allowed-headers", "--allowed-local-media-path",
    "--allowed-methods", "--allowed-origins", "--anthropic-disabled-thinking-effort",
    "--api-server-count", "--attention-backend", "--attention-config", "--aux-output-config",
    "--block-size", "--chat-template", "--chat-template-content-format", "--code-revision",
    "--cohere-format", "--compilation-config", "--config-format", "--convert",
    "--cp-kv-cache-interleave-size", "--cpu-distributed-timeout-seconds", "--cpu-offload-gb",
    "--custom-histogram-buckets", "--data-parallel-backend", "--data-parallel-size",
    "--data-parallel-size-local", "--dbo-decode-token-threshold", "--dbo-prefill-token-threshold",
    "--dcp-comm-backend", "--dcp-kv-cache-interleave-size", "--decode-context-parallel-size",
    "--default-chat-template-kwargs", "--default-mm-loras", "--device-ids", "--device-memory-utilization",
    "--diffusion-config", "--disable-access-log-for-endpoints", "--distributed-executor-backend",
    "--distributed-timeout-seconds", "--download-dir", "--dp-supervisor-probe-failure-threshold",
    "--dp-supervisor-probe-interval-s", "--dp-supervisor-probe-timeout-s", "--dp-sync-interval",
    "--dtype", "--ec-manager-config", "--ec-transfer-config", "--elastic-ep-max-dp-size",
    "--engram-config", "--eplb-config", "--expert-placement-strategy", "--fault-tolerance-config",
    "--fingerprint-mode", "--fingerprint-value", "--gdn-prefill-backend", "--generation-config",
    "--gpu-memory-utilization", "--h11-max-header-count", "--h11-max-incomplete-event-size",
    "--hf-config-path", "--hf-overrides", "--io-processor-plugin", "--ir-op-priority",
    "--jit-monitor-mode", "--kda-decode-backend", "--kda-prefill-backend", "--kernel-config",
    "--kv-cache-dtype", "--kv-cache-memory-bytes", "--kv-cache-metrics-sample", "--kv-events-config",
    "--kv-offloading-backend", "--kv-offloading-size", "--kv-transfer-config", "--limit-mm-per-prompt",
    "--linear-backend", "--load-format", "--log-config-file", "--log-level", "--logging-config",
    "--logprobs-mode", "--long-prefill-token-threshold", "--lora-dtype", "--mamba-backend",
    "--mamba-block-size", "--mamba-cache-dtype", "--mamba-cache-mode", "--mamba-cache-philox-rounds",
    "--mamba-ssm-cache-dtype", "--mamba-ssu-algorithm", "--max-cpu-loras", "--max-cudagraph-capture-size",
    "--max-log-len", "--max-logprobs", "--max-lora-cls-labels", "--max-lora-rank", "--max-loras",
    "--max-model-len", "--max-num-active-seqs", "--max-num-batched-tokens", "--max-num-queued-reqs",
    "--max-num-queued-tokens", "--max-num-scheduled-tokens", "--max-num-seqs",
    "--max-parallel-loading-workers", "--media-io-kwargs", "--mm-encoder-attn-backend",
    "--mm-encoder-attn-dtype", "--mm-encoder-fp8-scale-path", "--mm-encoder-fp8-scale-save-margin",
    "--mm-encoder-fp8-scale-save-path", "--mm-encoder-tp-mode", "--mm-hasher-algorithm",
    "--mm-ipc-gpu-memory-gb", "--mm-processor-cache-gb", "--mm-processor-cache-type",
    "--mm-processor-device", "--mm-processor-kwargs", "--mm-shm-cache-max-object-size-mb",
    "--mm-tensor-ipc", "--model-class-overrides", "--model-impl", "--model-loader-extra-config",
    "--moe-backend", "--num-gpu-blocks-override", "--offload-backend", "--offload-group-size",
    "--offload-num-in-group", "--offload-prefetch-step", "--optimization-level", "--otlp-traces-endpoint",
    "--override-generation-config", "--per-request-spec-decode-metrics", "--performance-mode",
    "--pipeline-parallel-size", "--pooler-config", "--prefill-context-parallel-size",
    "--prefill-schedule-interval", "--prefix-cache-retention-interval", "--prefix-caching-hash-algo",
    "--prefix-match-unit", "--profiler-config", "--pt-load-map-location", "--quantization",
    "--quantization-config", "--reasoning-config", "--reasoning-parser", "--reasoning-parser-plugin",
    "--renderer-num-workers", "--replayssm-buffer-len", "--response-role", "--revision", "--runner",
    "--safetensors-load-strategy", "--safetensors-prefetch-block-size",
    "--safetensors-prefetch-num-threads", "--scheduler-cls", "--scheduling-policy", "--seed",
    "--show-hidden-metrics-for-version", "--sparse-indexer-topk-backend", "--spec-method", "--spec-model",
    "--spec-tokens", "--speculative-config", "--sse-keep-alive-interval", "--stream-interval",
    "--structured-outputs-config", "--tensor-parallel-size", "--tokenizer", "--tokenizer-mode",
    "--tokenizer-revision", "--tool-call-parser", "--tool-parser-plugin", "--tool-server",
    "--tool-strict-level", "--ubatch-size", "--uvicorn-log-level", "--video-pruning-method",
    "--video-pruning-rate", "--watermark", "--watermark-config", "--weight-transfer-config",
    "--worker-cls", "--worker-extension-cls", "-ac", "-asc", "-cc", "-dc", "-dcp", "-dp", "-dpb", "-dpl",
    "-pcp", "-pp", "-q", "-sc", "-tp",
];

#[cfg(test)]
pub(crate) fn all_known() -> impl Iterator<Item = &'static str> {
    SWITCHES.iter().chain(MANY_VALUES).chain(ONE_VALUE).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_both_ours_and_theirs() {
        for flag in all_known() {
            assert!(OWNED.iter().all(|o| o.flag != flag && o.short != flag), "{flag}");
            assert!(
                OWNED_FAMILIES.iter().all(|(family, _)| !flag.starts_with(family)),
                "{flag}"
            );
        }
    }
}
