//! What is ours inside the job dies: the runner, its step, the srun client that holds it.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};

const SOON: Bound = Bound::Gone(Duration::from_secs(1));

pub const GROUP: Group = Group {
    title: "The runner dies",
    text: "What is killed can say nothing itself: the agent does, and removes what is left.",
    rows: &[
        Row::new(
            "the runner is killed",
            "SIGKILL to the runner alone",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                let runner = scene.runner()?;
                scene.hit(&runner, Signal::SIGKILL)
            },
        )
        .core()
        .soak(),
        Row::new(
            "the runner is started again",
            "SIGKILL to the runner, with a recipe that does not forbid it (`restart`): another step, the same address",
            Fate::Again("runner_lost"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                let runner = scene.runner()?;
                scene.hit(&runner, Signal::SIGKILL)
            },
        )
        .model("hardy")
        .soak(),
        Row::new(
            "the server's step is killed",
            "`scancel --signal=KILL JOB.STEP`",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                scene.strike();
                let step = format!("{}.0", scene.job.id);
                scene.owner(&["scancel", "--signal=KILL", &step]).map(drop)
            },
        )
        .soak(),
        Row::new(
            "the srun client is killed",
            "SIGKILL to the srun client outside the job: its shepherd ends the step",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            SOON,
            |scene| {
                // srun's first process; the other one is its shepherd, which ends the step when that dies.
                let first = scene.clients()?.remove(0);
                scene.hit(&first, Signal::SIGKILL)
            },
        )
        .soak(),
        Row::new(
            "the srun client and its shepherd are killed",
            "SIGKILL to all of srun: nobody is left to end the step, and it goes on",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                let all = scene.clients()?;
                // Whichever died first, the other would act upon it.
                for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                    scene.strike();
                    all.iter().try_for_each(|client| client.process.signal(signal))?;
                }
                scene.until_answered(20)
            },
        )
        .soak(),
    ],
};
