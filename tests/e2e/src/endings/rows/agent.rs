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

fn restarted(scene: &Scene, how: Signal) -> Result<()> {
    let stream = scene.site.open_stream(None, "none", "busy", 150)?;
    scene.strike();
    scene.site.end_agent(scene.node, how)?;
    scene.until_answered(40)?;
    scene.site.start_agent(scene.node)?;
    let text = stream.finish()?;
    ensure!(text.matches("\"content\":").count() >= 150, "{text}");
    // The new one rules over it like the old one.
    scene.until("the model to be ready again in its agent's words", || {
        Ok(scene
            .job
            .model_seen_from(scene.node)
            .is_ok_and(|model| model["state"] == "ready"))
    })
}
