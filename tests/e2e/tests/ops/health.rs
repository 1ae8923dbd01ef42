//! `sserve health`, by hand and as Slurm's HealthCheckProgram.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::{Site, has};

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    ("a_hung_agent_is_told_in_time", hung),
    ("without_a_choice_of_the_admins_no_node_is_drained", only_logged),
    ("a_node_is_drained_and_resumed_if_the_admin_chose_so", drained),
];

/// Where the program lies in a node.
pub const PROGRAM: &str = "/usr/lib/slurm-serve/health-check";
const CHOICE: &str = "/etc/slurm-serve/health-check.conf";
/// Bad answers in a row, as the program keeps them.
const BAD: &str = "/run/slurm-serve-health/bad";

fn hung(site: &Site) -> Result<()> {
    let node = site.node(1);
    for user in ["root", "alice"] {
        let line = node.command(user, ["sserve", "health"]).run()?;
        has(&line, &["the agent answers"])?;
    }
    site.signal_agent(node, Signal::SIGSTOP)?;
    // Whoever hangs in it is ended by `timeout` with another exit code.
    let argv = ["timeout", "10", "sserve", "health", "--timeout", "500ms"];
    let output = node.command("root", argv).output()?;
    site.signal_agent(node, Signal::SIGCONT)?;
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{}: {line}", output.status);
    ensure!(line.lines().count() == 1 && output.stdout.is_empty(), "{line}");
    has(&line, &["has not answered within 500ms"])
}

fn only_logged(site: &Site) -> Result<()> {
    let node = site.node(1);
    until("Slurm to have run the program", || {
        Ok(node.read(BAD).is_err()
            && node
                .command("root", ["test", "-d", "/run/slurm-serve-health"])
                .run()
                .is_ok())
    })?;
    site.end_agent(node, Signal::SIGKILL)?;
    until("more bad answers than are borne", || {
        let bad = node.read_text(BAD).unwrap_or_default();
        Ok(bad.trim().parse::<u32>().is_ok_and(|bad| bad > 4))
    })?;
    let state = site.node_state(node)?;
    ensure!(state == "idle", "the node is {state}");
    site.start_agent(node)?;
    until("the bad answers to be forgotten", || Ok(node.read(BAD).is_err()))
}

fn drained(site: &Site) -> Result<()> {
    let node = site.node(1);
    node.install_file(CHOICE, "ACTION=drain\nAFTER=2\n", 0o644)?;
    site.end_agent(node, Signal::SIGKILL)?;
    let is = |wanted: &'static str| move || Ok(site.node_state(node)?.starts_with(wanted));
    until("the node to be drained", is("drain"))?;
    let show = ["scontrol", "-o", "show", "node", node.name()];
    has(
        &node.command("root", show).run()?,
        &["Reason=slurm-serve: the agent does not answer"],
    )?;
    site.start_agent(node)?;
    until("the node to be resumed", is("idle"))?;

    // What somebody else drained stays drained.
    let update = |more: &[&str]| {
        let name = format!("NodeName={}", node.name());
        let argv = [&["scontrol", "update", &name], more].concat();
        node.command("root", argv).run()
    };
    update(&["State=DRAIN", "Reason=a fan"])?;
    site.end_agent(node, Signal::SIGKILL)?;
    until("bad answers", || {
        let bad = node.read_text(BAD).unwrap_or_default();
        Ok(bad.trim().parse::<u32>().is_ok_and(|bad| bad > 2))
    })?;
    has(&node.command("root", show).run()?, &["Reason=a fan"])?;
    site.start_agent(node)?;
    until("the bad answers to be forgotten", || Ok(node.read(BAD).is_err()))?;
    let state = site.node_state(node)?;
    ensure!(state == "drained", "the node is {state}");
    node.command("root", ["rm", CHOICE]).run()?;
    update(&["State=RESUME"])?;
    until("the node to be idle", is("idle"))
}
