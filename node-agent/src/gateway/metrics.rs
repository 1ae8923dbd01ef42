//! The gateway's metrics, in OpenMetrics' text: what was asked, how it went, and what the gateway knows at this moment.

use std::fmt::Write as _;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry as Known, Unit};
use slurm_serve_proto::v1::ModelState;

use super::registry::{Link, Now, Registry};
use crate::catalog::push::Status;
use crate::listing::state_word;

/// What is counted while requests go by.
#[derive(Debug)]
pub struct Metrics {
    known: Known,
    requests: Family<Request, Counter>,
    in_flight: Gauge,
    retries: Counter,
    refused: Counter,
    first: Family<Model, Histogram>,
    took: Family<Model, Histogram>,
    failures: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    model: String,
    /// `200`, `429`, …; 499: the client went before there was an answer.
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model: String,
}

/// Seconds: from a cached answer to a long one.
const BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
];

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut this = Self {
            known: Known::with_prefix("slurm_serve_gateway"),
            requests: Family::default(),
            in_flight: Gauge::default(),
            retries: Counter::default(),
            refused: Counter::default(),
            first: Family::new_with_constructor(histogram),
            took: Family::new_with_constructor(histogram),
            failures: Counter::default(),
        };
        let known = &mut this.known;
        known.register("requests", "Requests that are over, by model (empty: none was chosen) and status (499: the client went first)", this.requests.clone());
        known.register(
            "requests_in_flight",
            "Requests whose answers are not over",
            this.in_flight.clone(),
        );
        known.register(
            "retries",
            "Requests given to another replica because one took none",
            this.retries.clone(),
        );
        known.register(
            "rate_limited",
            "Requests refused because their key has had its share",
            this.refused.clone(),
        );
        known.register(
            "upstream_failures",
            "Replicas that could not be reached or broke off",
            this.failures.clone(),
        );
        known.register_with_unit(
            "first_byte",
            "From a request's head to the first byte of its answer",
            Unit::Seconds,
            this.first.clone(),
        );
        known.register_with_unit(
            "request_duration",
            "From a request's head to the last byte of its answer",
            Unit::Seconds,
            this.took.clone(),
        );
        this
    }
}

impl Metrics {
    /// A request has come.
    pub fn begun(&self) {
        self.in_flight.inc();
    }

    /// It is over. Names come from agents, never from clients, so there are no more than models.
    pub fn ended(&self, model: &str, status: u16, first: Option<Duration>, took: Duration, tries: u32) {
        self.in_flight.dec();
        self.retries.inc_by(u64::from(tries.saturating_sub(1)));
        if status == 429 {
            self.refused.inc();
        }
        let model = model.to_owned();
        self.requests
            .get_or_create(&Request {
                model: model.clone(),
                status,
            })
            .inc();
        if model.is_empty() {
            return;
        }
        let model = Model { model };
        self.took.get_or_create(&model).observe(took.as_secs_f64());
        if let Some(first) = first {
            self.first.get_or_create(&model).observe(first.as_secs_f64());
        }
    }

    /// A replica could not be reached, or broke off.
    pub fn failed(&self) {
        self.failures.inc();
    }

    /// All of it, with what is known now.
    pub fn text(&self, registry: &Registry, catalogs: &[Status], now: Now) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.known)
            .and_then(|()| moment(&mut text, registry, catalogs, now))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

fn moment(text: &mut String, registry: &Registry, catalogs: &[Status], now: Now) -> std::fmt::Result {
    let mut gauge = |name: &str, help: &str, rows: Vec<(String, u64)>| -> std::fmt::Result {
        writeln!(
            text,
            "# HELP slurm_serve_gateway_{name} {help}.\n# TYPE slurm_serve_gateway_{name} gauge"
        )?;
        rows.into_iter()
            .try_for_each(|(labels, value)| writeln!(text, "slurm_serve_gateway_{name}{{{labels}}} {value}"))
    };
    let links =
        |wanted: fn(&Link) -> bool| registry.nodes().filter(|(_, node)| wanted(&node.link)).count() as u64;
    gauge(
        "agents",
        "Agents that are watched, by how they are reached",
        vec![
            (
                "state=\"connected\"".into(),
                links(|link| *link == Link::Connected),
            ),
            (
                "state=\"connecting\"".into(),
                links(|link| *link == Link::Connecting),
            ),
            (
                "state=\"silent\"".into(),
                links(|link| matches!(link, Link::Silent(_))),
            ),
        ],
    )?;
    let mut states = std::collections::BTreeMap::<String, u64>::new();
    for replica in registry
        .replicas()
        .filter(|replica| !matches!(replica.state(), ModelState::Ended | ModelState::Unspecified))
    {
        *states.entry(state_word(replica.state())).or_default() += 1;
    }
    let states = states
        .into_iter()
        .map(|(state, count)| (format!("state=\"{state}\""), count));
    gauge("models", "Models that agents tell of, by state", states.collect())?;
    let (mut load, mut open) = (Vec::new(), Vec::new());
    for replica in registry
        .replicas()
        .filter(|replica| replica.takes_requests(now.unix_ms))
    {
        let model = &replica.model;
        let labels = format!(
            "model={},node={},job=\"{}\"",
            quoted(&model.name),
            quoted(&model.node),
            model.job_id
        );
        load.push((labels.clone(), replica.load.in_flight() as u64));
        open.push((labels, u64::from(replica.load.is_open(now.unix_ms))));
    }
    gauge("replica_in_flight", "Requests under way to a replica", load)?;
    gauge(
        "replica_circuit_open",
        "1: it failed of late, and others are preferred",
        open,
    )?;
    let catalogs = catalogs
        .iter()
        .map(|it| (format!("catalog={}", quoted(&it.name)), u64::from(it.agrees)));
    gauge("catalog_agrees", "1: it holds what it should", catalogs.collect())
}

/// As a label's value is written.
fn quoted(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{text}\"")
}
