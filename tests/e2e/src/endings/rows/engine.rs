//! The engine ends, or answers no more, though nobody asked for that.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

const SOON: Bound = Bound::Gone(Duration::from_secs(1));

pub const GROUP: Group = Group {
    title: "The engine dies",
    text: "Any end that nobody asked for is a failure, whatever the exit code. The job goes on, unless it was submitted with \
           `--serve-on-failure=cancel`.",
    rows: &[
        Row::new(
            "the engine exits with 0",
            "The engine ends by itself with exit code 0, as vLLM does when its engine process dies",
            Fate::Fails("engine_died"),
            JobFate::GoesOn,
            SOON,
            |scene| exits(scene, 0),
        )
        .mend(|scene| {
            scene.until("the exit code in sserve status", || {
                Ok(scene.job.model()?["ending"]["wait_status"] == 0)
            })
        })
        .log(&["has ended: "])
        .core()
        .soak(),
        Row::new(
            "the engine exits with 1",
            "The engine ends by itself with exit code 1",
            Fate::Fails("engine_died"),
            JobFate::GoesOn,
            SOON,
            |scene| exits(scene, 1),
        )
        .log(&["has ended: "])
        .soak(),
        Row::new(
            "the engine is killed",
            "SIGKILL to the engine's first process",
            Fate::Fails("engine_died"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                let engine = scene.job.stub()?;
                scene.strike();
                engine.process.signal(Signal::SIGKILL)
            },
        )
        .says(&["killed", "not by the job's memory limit"])
        .log(&["has ended: "])
        .core()
        .soak(),
        Row::new(
            "the engine dies and the job asked to go with it",
            "Exit code 1, in a job submitted with `--serve-on-failure=cancel`",
            Fate::Fails("engine_died"),
            JobFate::Is("CANCELLED"),
            SOON,
            |scene| exits(scene, 1),
        )
        .arguments(&["--serve-on-failure=cancel"])
        .soak(),
        Row::new(
            "the engine's child is killed",
            "SIGKILL to the engine process alone; its API process lives on for a while",
            Fate::Fails("engine_died"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                let child = scene.process("engine process", |running| {
                    running.command.contains("VLLM::EngineCore")
                })?;
                scene.hit(&child, Signal::SIGKILL)
            },
        )
        .model("family")
        .soak(),
        Row::new(
            "the engine is started again",
            "Exit code 1, with a recipe that does not forbid it (`restart`)",
            Fate::Again("engine_died"),
            JobFate::GoesOn,
            SOON,
            |scene| exits(scene, 1),
        )
        .model("hardy")
        .soak(),
        Row::new(
            "the engine hangs",
            "SIGSTOP to all of the engine: it lives, and answers nothing; then SIGCONT (`unresponsive_after` is 2 s here)",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Shown,
            |scene| {
                let engine = scene.job.stub()?;
                scene.strike();
                engine.process.signal(Signal::SIGSTOP)
            },
        )
        .model("watched")
        .mend(|scene| {
            silent(scene)?;
            scene.job.stub()?.process.signal(Signal::SIGCONT)
        })
        .soak(),
        Row::new(
            "the engine makes no tokens",
            "`/health` answers, and no token comes any more; then they do",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Shown,
            |scene| {
                let engine = scene.job.stub()?;
                scene.strike();
                engine.set("{\"hang\": \"engine\"}")
            },
        )
        .model("watched")
        .mend(|scene| {
            silent(scene)?;
            scene.job.stub()?.set("{\"hang\": \"none\"}")
        }),
        Row::new(
            "out of memory: the engine",
            "The engine takes more memory than the job has",
            Fate::Fails("out_of_memory"),
            JobFate::GoesOn,
            Bound::Shown,
            |scene| {
                let engine = scene.job.stub()?;
                scene.strike();
                engine.eat(1024)
            },
        )
        .says(&["memory"])
        .log(&["has ended: "]),
    ],
};

fn silent(scene: &Scene) -> Result<()> {
    scene.until("sserve status to say that it answers nothing", || {
        Ok(scene.job.model()?["state"] == "unresponsive")
    })
}

fn exits(scene: &Scene, code: u8) -> Result<()> {
    let engine = scene.job.stub()?;
    scene.strike();
    engine.exit(code)
}
