//! `sserve doctor` on a sound node, and on nodes with one thing wrong.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use serve_e2e::{Site, has};
use serve_lab::Node;

use crate::Test;

/// All of them.
pub const TESTS: &[Test] = &[
    ("a_sound_node_has_no_fail_whoever_looks", sound),
    ("what_is_wrong_is_named_with_what_to_do", wrong),
];

const PLUGIN: &str = "/usr/lib/slurm-serve/spank_serve.so";

/// Exit code and rows.
fn doctor(node: &Node, user: &str) -> Result<(i32, Value)> {
    let output = node.command(user, ["sserve", "doctor", "--json"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text).with_context(|| format!("{text}{output:?}"))?;
    Ok((output.status.code().context("a signal")?, report))
}

/// What was seen, of a check's rows with that verdict, one line each.
fn seen(report: &Value, check: &str, verdict: &str) -> String {
    let rows = report["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = rows
        .iter()
        .filter(|row| row["check"] == check && row["verdict"] == verdict);
    rows.filter_map(|row| row["seen"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

fn sound(site: &Site) -> Result<()> {
    let node = site.node(1);
    for (node, user, role) in [
        (node, "root", "compute"),
        (node, "alice", "compute"),
        (site.lab.login(), "alice", "login"),
    ] {
        let (code, report) = doctor(node, user)?;
        ensure!(
            code == 0 && report["role"] == role,
            "{user} on {}: {report}",
            node.name()
        );
    }
    let (_, report) = doctor(node, "root")?;
    has(&seen(&report, "slurmd", "OK"), &["has the plugin loaded"])?;
    has(
        &seen(&report, "agent", "OK"),
        &["runs /usr/bin/slurm-serve", "answers: slurm-serve"],
    )?;
    has(&seen(&report, "agent over TCP", "OK"), &["proven by munge"])?;
    has(&seen(&report, "recipes", "WARN"), &["/opt/no/such/vllm"])?;
    // Stand-ins have no driver.
    has(
        &seen(&report, "gpus", "WARN"),
        &["2 by Slurm, 2 devices", "no NVML library"],
    )?;
    // A user is told what he can't see.
    let (_, report) = doctor(node, "alice")?;
    has(&seen(&report, "slurmd", "SKIP"), &["root sees"])?;
    let (_, report) = doctor(site.lab.login(), "alice")?;
    has(&seen(&report, "agents", "OK"), &["all 2 answer"])
}

fn wrong(site: &Site) -> Result<()> {
    let node = site.node(2);
    let good = node.read(PLUGIN)?;
    node.command(
        "root",
        ["sserve", "plugin", "stamp", PLUGIN, "--slurm", "23.02.1"],
    )
    .run()?;
    node.install_file(
        "/etc/slurm-serve/models.d/broken.toml",
        "source = '/x'\ngpu = 1\n",
        0o644,
    )?;
    site.end_agent(node, Signal::SIGKILL)?;
    let told = doctor(node, "root");
    let from_login = doctor(site.lab.login(), "alice");
    node.install_file(PLUGIN, good, 0o644)?;
    node.command("root", ["rm", "/etc/slurm-serve/models.d/broken.toml"])
        .run()?;
    let (code, report) = told?;
    ensure!(code == 1, "{report}");
    has(
        &seen(&report, "plugin", "FAIL"),
        &["made for Slurm 23.02.1", "sserve plugin stamp"],
    )?;
    has(
        &seen(&report, "recipes", "FAIL"),
        &["broken.toml:2: unknown key \"gpu\""],
    )?;
    has(
        &seen(&report, "agent", "FAIL"),
        &["nobody listens at /run/slurm-serve/agent.sock"],
    )?;
    let (_, report) = from_login?;
    has(
        &seen(&report, "agents", "WARN"),
        &["1 of 2 do not answer", node.name()],
    )
}
