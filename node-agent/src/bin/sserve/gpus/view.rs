//! GPUs for people, and for scripts.

use serde::Serialize;
use slurm_serve_proto::v1::{DriverState, Gpu, GpuState, NodeSample};

use crate::table::{self, Column};
use crate::words;

/// What is printed as JSON. Absent: not known, or nothing the card tells.
#[derive(Debug, Serialize)]
pub struct Gpus {
    pub nodes: Vec<Node>,
}

/// One node, whatever is known of it.
#[derive(Debug, Serialize)]
pub struct Node {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<Driver>,
    gpus: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Driver {
    state: String,
    text: String,
    version: String,
    cuda_version: String,
}

#[derive(Debug, Serialize)]
struct Row {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    minor: Option<u32>,
    uuid: String,
    name: String,
    pci_bus_id: String,
    state: String,
    age_ms: i64,
    #[serde(flatten)]
    values: Values,
    clock_event_reasons: Vec<String>,
    /// Xid to how often it came since the agent's start.
    xids: std::collections::BTreeMap<u32, u64>,
}

#[derive(Debug, Default, Serialize)]
struct Values {
    #[serde(skip_serializing_if = "Option::is_none")]
    utilization_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power_limit_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row_remap_pending: Option<bool>,
}

impl Node {
    /// As its agent tells it.
    pub fn of(sample: &NodeSample) -> Self {
        let driver = sample.driver.as_ref().map(|driver| Driver {
            state: short(driver.state().as_str_name(), "DRIVER_STATE_"),
            text: driver.text.clone(),
            version: driver.version.clone(),
            cuda_version: driver.cuda_version.clone(),
        });
        Self {
            node: sample.node.clone(),
            error: None,
            at_ms: Some(sample.at_ms),
            driver,
            gpus: sample.gpus.iter().map(Row::of).collect(),
        }
    }

    /// Of which nothing is known.
    pub fn silent(node: &str, why: String) -> Self {
        Self {
            node: node.to_owned(),
            error: Some(why),
            at_ms: None,
            driver: None,
            gpus: Vec::new(),
        }
    }

    /// Whether nothing is known of it.
    pub fn is_silent(&self) -> bool {
        self.error.is_some()
    }

    /// What has to be said of the node itself.
    fn trouble(&self) -> Option<(&str, &str)> {
        let fine = [DriverState::Ok, DriverState::Absent].map(|it| short(it.as_str_name(), "DRIVER_STATE_"));
        let unwell = self
            .driver
            .as_ref()
            .filter(|driver| !fine.contains(&driver.state));
        let silent = self.error.as_deref().map(|error| ("silent", error));
        silent.or_else(|| unwell.map(|driver| (driver.state.as_str(), driver.text.as_str())))
    }
}

impl Row {
    fn of(gpu: &Gpu) -> Self {
        Self {
            index: gpu.index,
            minor: gpu.minor,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
            state: short(gpu.state().as_str_name(), "GPU_STATE_"),
            age_ms: gpu.age_ms,
            values: Values {
                utilization_ratio: gpu.utilization_ratio,
                power_watts: gpu.power_watts,
                power_limit_watts: gpu.power_limit_watts,
                temperature_celsius: gpu.temperature_celsius,
                memory_used_bytes: gpu.memory_used_bytes,
                memory_total_bytes: gpu.memory_total_bytes,
                row_remap_pending: gpu.row_remap_pending,
            },
            clock_event_reasons: gpu.clock_event_reasons.clone(),
            xids: gpu.xids.iter().map(|(xid, count)| (*xid, *count)).collect(),
        }
    }

    fn cells(&self, node: &str) -> Vec<String> {
        let values = &self.values;
        let watts = |of: Option<f64>| of.map(|watts| format!("{watts:.0}"));
        vec![
            node.to_owned(),
            self.index.to_string(),
            self.name.clone(),
            self.state.clone(),
            said(values.utilization_ratio, |ratio| format!("{:.0}%", 100.0 * ratio)),
            pair(watts(values.power_watts), watts(values.power_limit_watts), "W"),
            said(values.temperature_celsius, |celsius| format!("{celsius:.0}°C")),
            pair(
                values.memory_used_bytes.map(gibibytes),
                values.memory_total_bytes.map(gibibytes),
                "GiB",
            ),
            self.note(),
        ]
    }

    /// What else has to be said of it; what is as it should be is not.
    fn note(&self) -> String {
        let mut notes = Vec::new();
        if self.state == short(GpuState::Stale.as_str_name(), "GPU_STATE_") {
            notes.push(format!("values of {} ago", words::span(self.age_ms)));
        }
        notes.extend(self.xids.keys().map(|xid| format!("Xid {xid}")));
        if self.values.row_remap_pending == Some(true) {
            notes.push("needs a reset: a row of its memory waits to be remapped".into());
        }
        let usual = ["gpu_idle", "applications_clocks_setting"];
        let held = self
            .clock_event_reasons
            .iter()
            .filter(|it| !usual.contains(&it.as_str()));
        notes.extend(held.map(|reason| reason.replace('_', " ")));
        notes.join(", ")
    }
}

/// All of them as lines.
pub fn table(nodes: &[Node]) -> Vec<String> {
    let mut rows = Vec::new();
    for node in nodes {
        rows.extend(node.gpus.iter().map(|gpu| gpu.cells(&node.node)));
        if let Some((state, text)) = node.trouble() {
            let mut row = vec![String::new(); HEAD.len()];
            (row[0], row[3], row[8]) = (node.node.clone(), state.to_owned(), text.to_owned());
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return vec![format!(
            "no NVIDIA GPU (asked {})",
            words::count(nodes.len(), "agent")
        )];
    }
    table::render(&HEAD, &rows, table::terminal_columns())
}

const HEAD: [Column; 9] = [
    Column::text("NODE", 6),
    Column::number("GPU"),
    Column::text("NAME", 8),
    Column::whole("STATE"),
    Column::number("UTIL"),
    Column::number("POWER"),
    Column::number("TEMP"),
    Column::number("MEMORY"),
    Column::text("NOTE", 8),
];

fn said<T>(value: Option<T>, say: impl Fn(T) -> String) -> String {
    value.map(say).unwrap_or_default()
}

fn pair(one: Option<String>, other: Option<String>, unit: &str) -> String {
    match (one, other) {
        (Some(one), Some(other)) => format!("{one}/{other} {unit}"),
        (Some(one), None) => format!("{one} {unit}"),
        _ => String::new(),
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

fn short(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}
