//! The agent dies, or is replaced: models serve on, and the catalog never empties.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

pub const GROUP: Group = Group {
    title: "The agent dies",
    text: "Models outlive it, streams too, and the catalog never empties.",
    rows: &[
        Row::new(
            "the agent is killed",
            "SIGKILL to the agent while an answer streams, and a new one 3 s of requests later",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| restarted(scene, Signal::SIGKILL),
        )
        .core()
        .soak(),
        Row::new(
            "the agent is stopped",
            "SIGTERM to the agent, as systemd does, and a new one",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| restarted(scene, Signal::SIGTERM),
        )
        .soak(),
        Row::new(
            "the agent is replaced",
            "SIGTERM to the agent, and one from another file takes its place, as an upgrade does; then back again",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            replaced,
        )
        .mend(|scene| {
            scene.site.end_agent(scene.node, Signal::SIGTERM)?;
            scene.until_answered(20)?;
            scene.site.start_agent(scene.node)?;
            ready_in_its_words(scene)?;
            scene.on_node("root", &["rm", OTHER]).map(drop)
        })
        .soak(),
        Row::new(
            "the agent is away for longer than the lease",
            "SIGKILL to the agent, and a new one one and a half leases later: the gateway asks the guard itself",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.site.end_agent(scene.node, Signal::SIGKILL)?;
                scene.longer_than_the_lease()?;
                scene.site.start_agent(scene.node)?;
                ready_in_its_words(scene)
            },
        )
        .soak(),
        Row::new(
            "the agent hangs",
            "SIGSTOP to the agent for one and a half leases, then SIGCONT",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.site.signal_agent(scene.node, Signal::SIGSTOP)?;
                scene.longer_than_the_lease()?;
                scene.site.signal_agent(scene.node, Signal::SIGCONT)?;
                ready_in_its_words(scene)
            },
        ),
        Row::new(
            "the disk is full under the agent's state",
            "No byte is free where the agent keeps its launches: what serves serves on, a new model is refused with the reason, and one \
             that comes once there is room again is served",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            disk_full,
        )
        .mend(|scene| {
            scene.site.end_agent(scene.node, Signal::SIGTERM)?;
            scene.on_node("root", &["sh", "-c", "rm -f /var/lib/slurm-serve/filler && cp -a /var/lib/slurm-serve /run/state && \
                umount /var/lib/slurm-serve && rm -rf /var/lib/slurm-serve && mv /run/state /var/lib/slurm-serve"])?;
            scene.site.start_agent(scene.node)
        }),
        Row::new(
            "the job ends while the agent is away",
            "`scancel JOB` without an agent: the guard answers no more, and the catalog believes it",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::Lease,
            |scene| {
                scene.site.end_agent(scene.node, Signal::SIGKILL)?;
                scene.strike();
                scene.job.cancel()
            },
        )
        .mend(|scene| scene.site.start_agent(scene.node)),
    ],
};

/// Where another build lies for a while.
const OTHER: &str = "/usr/lib/slurm-serve/next-slurm-serve";

fn replaced(scene: &Scene) -> Result<()> {
    scene.on_node("root", &["cp", "/usr/bin/slurm-serve", OTHER])?;
    let stream = scene.site.open_stream(None, "none", "busy", 150)?;
    scene.strike();
    scene.site.end_agent(scene.node, Signal::SIGTERM)?;
    let other = scene.node.command("root", [OTHER, "agent"]);
    scene.site.start_agent_as(scene.node, other)?;
    let text = stream.finish()?;
    ensure!(text.matches("\"content\":").count() >= 150, "{text}");
    ready_in_its_words(scene)
}

fn disk_full(scene: &Scene) -> Result<()> {
    let node = scene.node;
    // A small file system of its own, with what was there.
    scene.site.end_agent(node, Signal::SIGTERM)?;
    let small = "cp -a /var/lib/slurm-serve /run/state && mount -t tmpfs -o size=1m,mode=0700 state /var/lib/slurm-serve && \
                 cp -a /run/state/. /var/lib/slurm-serve/ && rm -r /run/state";
    scene.on_node("root", &["sh", "-c", small])?;
    scene.site.start_agent(node)?;
    ready_in_its_words(scene)?;
    scene.strike();
    let fill = "cat /dev/zero >/var/lib/slurm-serve/filler 2>/dev/null; sync; cat /dev/zero >>/var/lib/slurm-serve/filler 2>/dev/null; true";
    scene.on_node("root", &["sh", "-c", fill])?;
    let arguments = ["-w", node.name(), "--serve-model=stub"];
    let refused = scene.site.sbatch("bob", &arguments, "echo it ran")?;
    let state = refused.wait_end()?;
    let output = refused.output();
    ensure!(
        state == "FAILED" && output.contains("the disk must have room") && !output.contains("it ran"),
        "{state}: {}",
        refused.explain()
    );
    scene.on_node("root", &["rm", "/var/lib/slurm-serve/filler"])?;
    let served = scene.site.sbatch("bob", &arguments, "echo model $SERVE_MODEL")?;
    let state = served.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", served.explain());
    scene.until_answered(20)
}

/// The agent that is there now rules over the model like the one before.
fn ready_in_its_words(scene: &Scene) -> Result<()> {
    scene.until("the model to be ready again in its agent's words", || {
        Ok(scene
            .job
            .model_seen_from(scene.node)
            .is_ok_and(|model| model["state"] == "ready"))
    })
}

fn restarted(scene: &Scene, how: Signal) -> Result<()> {
    let stream = scene.site.open_stream(None, "none", "busy", 150)?;
    scene.strike();
    scene.site.end_agent(scene.node, how)?;
    scene.until_answered(40)?;
    scene.site.start_agent(scene.node)?;
    let text = stream.finish()?;
    ensure!(text.matches("\"content\":").count() >= 150, "{text}");
    ready_in_its_words(scene)
}
