//! A node freezes, is cut off, or is lost, while controller, gateway and clients live on elsewhere.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::clock;
use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

pub const GROUP: Group = Group {
    title: "The node is lost without a word",
    text: "What a silent node said is believed for the lease, 10 s unless configured.",
    rows: &[
        Row::new(
            "the node is cut off",
            "Its cable is pulled, and plugged in again",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.cut()
            },
        )
        .mend(|scene| scene.node.restore())
        .core(),
        Row::new(
            "the node is frozen",
            "Every process on it stops, and goes on",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.freeze()
            },
        )
        .mend(|scene| scene.node.thaw()),
        Row::new(
            "the node is slowed",
            "A token bucket of 512 kbit/s and 300 ms of queue on the node's cable, both ways (there is no netem here)",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.node.slow()?;
                scene.longer_than_the_lease()?;
                scene.until_answered(20)
            },
        )
        .mend(|scene| scene.node.restore()),
        Row::new(
            "the node loses its power",
            "Its cable is pulled and all of its processes die at once; it boots, with nothing left of what was in memory",
            Fate::Forgotten,
            JobFate::Is("NODE_FAIL"),
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.node.power_cut()
            },
        )
        .arguments(&["--no-requeue"])
        .mend(|scene| {
            // slurmctld misses a batch job at a node's registration only once it is older than BatchStartTimeout and half of MessageTimeout.
            scene.longer_than_the_lease()?;
            scene.node.boot()?;
            scene.site.start_agent(scene.node)
        }),
        Row::new(
            "the clock is stepped",
            "The wall clock: an hour ahead, right, an hour behind (the agent has one of its own for this; the job's end is days away)",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            clock_stepped,
        )
        .arguments(&["--time=2-00:00:00"]),
    ],
};

fn clock_stepped(scene: &Scene) -> Result<()> {
    let (site, node) = (scene.site, scene.node);
    let (name, value) = clock::of(node)?;
    site.end_agent(node, Signal::SIGTERM)?;
    let agent = node.command("root", ["slurm-serve", "agent"]).env(name, value);
    site.start_agent_as(node, agent)?;
    scene.strike();
    for seconds in [3600, 0, -3600] {
        clock::step(node, seconds)?;
        scene.longer_than_the_lease()?;
        scene.until_answered(20)?;
    }
    site.end_agent(node, Signal::SIGTERM)?;
    // Its log tells that it had that clock.
    let log = site.whole_agent_log(node)?;
    let last = log.lines().rfind(|line| line.contains("models keep running"));
    let told = last
        .and_then(|line| line.split(' ').next())
        .context("no last word")?;
    let behind = SystemTime::now().duration_since(humantime::parse_rfc3339(told)?)?;
    ensure!(behind > Duration::from_secs(1800), "its last word is of {told}");
    site.start_agent(node)?;
    scene.until("the model to be ready again in its agent's words", || {
        Ok(scene.job.model().is_ok_and(|model| model["state"] == "ready"))
    })
}
