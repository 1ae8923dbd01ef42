//! `/metrics`: the families of vLLM's that people and proxies look at, in vLLM's names and labels.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::engine::Engine;

/// A number that goes up, and for gauges down.
#[derive(Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Takes away.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of every histogram's buckets, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

/// A histogram of seconds.
#[derive(Default)]
pub struct Histogram {
    buckets: [Number; BUCKETS.len()],
    count: Number,
    micros: Number,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        self.count.add(1);
        self.micros
            .add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        for (bound, bucket) in BUCKETS.iter().zip(&self.buckets) {
            if took.as_secs_f64() <= *bound {
                bucket.add(1);
            }
        }
    }
}

/// Finish reasons, as vLLM labels them.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// Everything that is counted.
#[derive(Default)]
pub struct Counters {
    /// Requests that make tokens.
    pub running: Number,
    /// Requests that wait for a place.
    pub waiting: Number,
    /// Prompt tokens so far.
    pub prompt_tokens: Number,
    /// Generated tokens so far.
    pub generation_tokens: Number,
    /// Pieces of work done so far, of prefills above all.
    pub chunks: Number,
    /// Body bytes read so far, of requests that are still being read too.
    pub body_bytes: Number,
    /// Inference requests inside the server, for `/load`.
    pub load: Number,
    /// From the request to its first token.
    pub first_token: Histogram,
    /// From the request to its end.
    pub whole_request: Histogram,
    finished: [Number; REASONS.len()],
}

impl Counters {
    /// One request ended for this reason.
    pub fn finished(&self, reason: &str) {
        if let Some(i) = REASONS.iter().position(|r| *r == reason) {
            self.finished[i].add(1);
        }
    }
}

/// The whole text.
pub fn render(engine: &Engine) -> String {
    let c = &engine.counters;
    let labels = format!("engine=\"0\",model_name=\"{}\"", escaped(&engine.ids()[0]));
    let mut page = Page {
        text: String::with_capacity(8192),
        labels,
    };
    page.gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        c.running.get() as f64,
    );
    page.gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        c.waiting.get() as f64,
    );
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        (c.chunks.get() % 100) as f64 / 100.0,
    );
    page.counter(
        "vllm:num_preemptions",
        "Cumulative number of preemptions from the engine.",
        0,
    );
    page.counter(
        "vllm:prompt_tokens",
        "Number of prefill tokens processed.",
        c.prompt_tokens.get(),
    );
    page.counter(
        "vllm:generation_tokens",
        "Number of generation tokens processed.",
        c.generation_tokens.get(),
    );
    page.head(
        "vllm:request_success_total",
        "counter",
        "Count of successfully processed requests.",
    );
    for (reason, number) in REASONS.iter().zip(&c.finished) {
        page.sample(
            "vllm:request_success_total",
            &format!(",finished_reason=\"{reason}\""),
            number.get() as f64,
        );
    }
    page.histogram(
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token.",
        &c.first_token,
    );
    page.histogram(
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency.",
        &c.whole_request,
    );
    page.head(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    );
    let _ = writeln!(page.text, "process_start_time_seconds {}.0", engine.created);
    page.text
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    // Writing to a `String` can't fail, hence the dropped results.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {value:?}", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        self.sample(&name, "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, of: &Histogram) {
        self.head(name, "histogram", help);
        for (bound, bucket) in BUCKETS.iter().zip(&of.buckets) {
            self.sample(
                &format!("{name}_bucket"),
                &format!(",le=\"{bound:?}\""),
                bucket.get() as f64,
            );
        }
        self.sample(&format!("{name}_bucket"), ",le=\"+Inf\"", of.count.get() as f64);
        self.sample(&format!("{name}_count"), "", of.count.get() as f64);
        self.sample(&format!("{name}_sum"), "", of.micros.get() as f64 / 1e6);
    }
}
