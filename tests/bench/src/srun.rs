//! What the plugin costs a job that has nothing to do with it.
//!
//! `srun true` on a node with the plugin and on one without, each with a plugstack of its own: what srun, slurmd and slurmstepd load and call
//! there differs in nothing else. Pairs are taken in turns, in random order. Two nodes are never quite equal: a second node without the
//! plugin shows by how much.
//!
//! As a step of an allocation that is there already, nothing but the step itself is measured. As a job of its own, `srun` also waits for the
//! prolog, and that is where slurmd starts a helper (`slurmstepd spank prolog`) for a plugin that has such a hook. That one is timed by the
//! lines that slurmd writes when it starts it and when it has ended.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serve_e2e::Site;
use serve_lab::{Node, wait_for};

use crate::bed::{ALSO_WITHOUT, Effort, WITH, WITHOUT, wait_idle};
use crate::report::{Goal, Row};
use crate::slurmd_log::{self, Helper};
use crate::stats::Samples;

/// What an untagged job may pay, in ms.
const GOAL: f64 = 5.0;

/// slurmctld takes a moment to hear of a job's end after the node is done with it.
const HEARD: Duration = Duration::from_millis(15);

/// Runs it.
pub fn measure(site: &Site, effort: Effort) -> Result<Vec<Row>> {
    let nodes = [WITH, WITHOUT, ALSO_WITHOUT].map(|number| site.node(number));
    let steps = as_steps(&nodes, effort.rounds(300, 40))?;
    let jobs = as_jobs(&nodes, effort.rounds(70, 10))?;
    let helpers = helpers(nodes[0], effort.rounds(25, 6))?;
    let [prolog, epilog] = ["prolog", "epilog"].map(|hook| Phases::of(&helpers, hook));
    Ok(vec![
        Row::new(
            "srun true, a step: added by the plugin",
            steps[0].added(&steps[1], 0.5),
            "ms",
            Goal::AtMost(GOAL),
        )
        .beside("two nodes without it", steps[2].added(&steps[1], 0.5)),
        Row::new(
            "srun true, a step: whole, with the plugin",
            steps[0].quantile(0.5),
            "ms",
            Goal::None,
        )
        .beside("without", steps[1].quantile(0.5)),
        Row::new(
            "srun true, a job: added, prolog helper included",
            jobs[0].added(&jobs[1], 0.5),
            "ms",
            Goal::None,
        )
        .beside("two nodes without it", jobs[2].added(&jobs[1], 0.5)),
        Row::new(
            "srun true, a job: whole, with the plugin",
            jobs[0].quantile(0.5),
            "ms",
            Goal::None,
        )
        .beside("without", jobs[1].quantile(0.5)),
        prolog.row("prolog helper"),
        epilog.row("epilog helper"),
    ])
}

/// The three nodes in turns, in allocations made before.
fn as_steps(nodes: &[&Node; 3], rounds: usize) -> Result<[Samples; 3]> {
    let mut jobs = Vec::new();
    for node in nodes {
        let text = node
            .command(
                "alice",
                ["salloc", "--no-shell", "--mem=500", "-n1", "-w", node.name()],
            )
            .output()?;
        let said = String::from_utf8_lossy(&text.stderr).into_owned();
        let job: u32 = said
            .lines()
            .find_map(|line| line.strip_prefix("salloc: Granted job allocation "))
            .and_then(|id| id.trim().parse().ok())
            .with_context(|| format!("salloc said {said:?}"))?;
        jobs.push(job.to_string());
    }
    let samples = turns(rounds, |which| {
        let seconds = timed(nodes[which], &["--overlap", "--jobid", &jobs[which]])?;
        Ok(seconds)
    });
    nodes[0]
        .command("alice", std::iter::once("scancel".to_owned()).chain(jobs))
        .run()?;
    for node in nodes {
        wait_idle(node)?;
    }
    samples
}

/// The three nodes in turns, each run a job of its own, the node at rest before.
fn as_jobs(nodes: &[&Node; 3], rounds: usize) -> Result<[Samples; 3]> {
    turns(rounds, |which| {
        let node = nodes[which];
        let seconds = timed(node, &["--mem=100", "-w", node.name()])?;
        wait_idle(node)?;
        std::thread::sleep(HEARD);
        Ok(seconds)
    })
}

/// Runs `one` for 0, 1 and 2 in every round, in random order. A first round is thrown away.
fn turns(rounds: usize, mut one: impl FnMut(usize) -> Result<f64>) -> Result<[Samples; 3]> {
    let mut samples = [(); 3].map(|()| Samples::default());
    let mut random = SmallRng::seed_from_u64(random_seed());
    for round in 0..=rounds {
        let mut order = [0, 1, 2];
        order.shuffle(&mut random);
        for which in order {
            let milliseconds = one(which)?;
            if round > 0 {
                samples[which].push(vec![milliseconds]);
            }
        }
    }
    Ok(samples)
}

fn random_seed() -> u64 {
    rand::rng().random()
}

/// One `srun true`, from its start to its end, in ms.
fn timed(node: &Node, arguments: &[&str]) -> Result<f64> {
    let mut argv = vec!["srun", "--quiet", "--input=none", "-n1"];
    argv.extend(arguments);
    argv.push("true");
    let command = node.command("alice", argv);
    let start = Instant::now();
    let status = command.attached()?;
    let took = start.elapsed();
    ensure!(
        status.success(),
        "srun true on {} ended with {status}",
        node.name()
    );
    Ok(took.as_secs_f64() * 1000.0)
}

/// Runs jobs on a node whose slurmd tells of its helpers, and gives what it told.
fn helpers(node: &Node, rounds: usize) -> Result<Vec<Helper>> {
    slurmd_log::say_more(node, true)?;
    let from = slurmd_log::length(node)?;
    for _ in 0..rounds {
        timed(node, &["--mem=100", "-w", node.name()])?;
        wait_idle(node)?;
        std::thread::sleep(HEARD);
    }
    let found = wait_for(Duration::from_secs(10), "the last epilog in slurmd's log", || {
        let helpers = slurmd_log::helpers(&slurmd_log::read(node, from)?);
        let epilogs = helpers.iter().filter(|helper| helper.hook == "epilog").count();
        Ok((epilogs >= rounds).then_some(helpers))
    });
    slurmd_log::say_more(node, false)?;
    let found = found?;
    if found.iter().any(|helper| helper.whole < helper.plugin) {
        bail!("slurmd's log on {} makes no sense: {found:?}", node.name());
    }
    Ok(found)
}

/// The helpers of one hook.
struct Phases {
    whole: Samples,
    plugin: Samples,
}

impl Phases {
    fn of(helpers: &[Helper], hook: &str) -> Self {
        let mine = || helpers.iter().filter(|helper| helper.hook == hook);
        Self {
            whole: Samples::single(mine().map(|helper| helper.whole)),
            plugin: Samples::single(mine().map(|helper| helper.plugin)),
        }
    }

    fn row(&self, name: &str) -> Row {
        let measure = format!("{name}, as slurmd counts it");
        Row::new(measure, self.whole.quantile(0.5), "ms", Goal::None)
            .beside("the plugin's part of it", self.plugin.quantile(0.5))
    }
}
