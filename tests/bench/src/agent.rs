//! What the agent takes from a node while it has ten models and nobody asks it anything, and how big the plugin is.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serve_e2e::Site;
use serve_lab::{Background, Node, Product, wait_for};

use crate::bed::{Effort, WITH, wait_idle};
use crate::report::{Goal, Row};
use crate::stats::Samples;

/// Models on the node.
const MODELS: usize = 10;

/// Resident memory, in MiB.
const MEMORY: f64 = 20.0;

/// Of a core, in percent.
const IDLE: f64 = 0.2;

/// The plugin, in MB; every slurmstepd maps it.
const PLUGIN: f64 = 2.0;

/// Models have come up by then, and what that took has come to rest.
const REST: Duration = Duration::from_secs(5);

/// The file that it runs on: every setting as it comes.
const DEFAULTS: &str = "# nothing is set\n";

const LOG: &str = "/var/log/slurm-serve-agent.log";

/// Runs it.
pub fn measure(site: &Site, effort: Effort) -> Result<Vec<Row>> {
    let node = site.node(WITH);
    let agent = with_defaults(site, node)?;
    let jobs = (0..MODELS)
        .map(|_| {
            site.sbatch(
                "alice",
                &["--serve-model=bench-fast", "-w", node.name()],
                "sserve hold",
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for job in &jobs {
        job.wait_model("ready")?;
    }
    std::thread::sleep(REST);
    let pid = agent.process().pid;
    let slices = effort.rounds(10, 3);
    let mut used = Samples::default();
    for _ in 0..slices {
        used.push(vec![percent_of_a_core(pid, Duration::from_secs(3))?]);
    }
    let memory = status(pid, "VmRSS")?;
    let own = status(pid, "RssAnon")?;
    for job in &jobs {
        job.cancel()?;
    }
    wait_idle(node)?;

    let seconds = slices * 3;
    // The mean is what it takes; single slices only show how it is spread.
    let mean = used.0.iter().flatten().sum::<f64>() / used.len() as f64;
    let plugin = size(&Product::locate()?.built.join("libspank_serve.so"))?;
    Ok(vec![
        Row::read(
            format!("agent: resident memory, {MODELS} models"),
            memory,
            "MiB",
            Goal::AtMost(MEMORY),
        ),
        Row::read(
            "agent: of that its own, not its program's file",
            own,
            "MiB",
            Goal::None,
        ),
        Row::read(
            format!("agent: CPU, idle with {MODELS} models, over {seconds} s"),
            mean,
            "% of a core",
            Goal::AtMost(IDLE),
        ),
        Row::read("plugin: size of the .so", plugin, "MB", Goal::AtMost(PLUGIN)),
    ])
}

/// Puts an agent with default settings and quiet logging in the place of the site's.
fn with_defaults(site: &Site, node: &Node) -> Result<Background> {
    node.install_file("/etc/slurm-serve/config.toml", DEFAULTS, 0o644)?;
    site.signal_agent(node, Signal::SIGTERM)?;
    wait_for(Duration::from_secs(10), "the agent to end", || {
        let running = node.processes()?;
        let there = running
            .iter()
            .any(|process| process.command.ends_with("slurm-serve agent"));
        Ok((!there).then_some(()))
    })?;
    let agent = node.command("root", ["slurm-serve", "agent"]).spawn(LOG)?;
    wait_for(Duration::from_secs(15), "the agent to answer", || {
        let answers = node.command("root", ["sserve", "list"]).output()?;
        anyhow::ensure!(agent.is_running()?, "it ended: {}", node.tail(LOG, 5));
        Ok(answers.status.success().then_some(()))
    })?;
    Ok(agent)
}

/// Processor time of all its threads, past ones too, over a while.
pub fn percent_of_a_core(pid: i32, over: Duration) -> Result<f64> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).context("the agent has no clock")?;
    let used = || -> Result<Duration> { Ok(clock_gettime(clock).context("the agent is gone")?.into()) };
    let (before, start) = (used()?, Instant::now());
    std::thread::sleep(over);
    let (after, took) = (used()?, start.elapsed());
    Ok(100.0 * after.saturating_sub(before).as_secs_f64() / took.as_secs_f64())
}

/// A field of /proc/PID/status in MiB.
fn status(pid: i32, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the agent is gone")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("no {field} in /proc/{pid}/status"))? / 1024.0)
}

fn size(file: &Path) -> Result<f64> {
    let length = std::fs::metadata(file)
        .with_context(|| format!("can't look at {}", file.display()))?
        .len();
    Ok(length as f64 / 1e6)
}
