//! Slurm ends the job, moves it, or stops it for a while; its daemons come and go.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_lab::wait_for;

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

pub const GROUP: Group = Group {
    title: "Slurm ends the job, or moves it",
    text: "Slurm's own timers look every half minute or so; the bound is on requests, not on when Slurm begins.",
    rows: &[
        Row::new(
            "the time limit",
            "The job reaches its time limit",
            Fate::Ends("time_limit"),
            JobFate::Is("TIMEOUT"),
            Bound::NoneLost,
            |scene| {
                // Slurm's limits are minutes; the books can say seconds.
                scene.strike();
                update(scene, "EndTime=now+1")
            },
        )
        .log(&["has ended: "]),
        Row::new(
            "the time limit is raised",
            "`scontrol update TimeLimit` while it serves; `sserve status` shows the new end, and the model is there beyond the old one",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            raised,
        )
        .arguments(&["--time=1"]),
        Row::new(
            "preemption with requeue",
            "A job of a partition with a higher priority takes the node, and gives it back; Slurm's books tell of the requeue alone",
            Fate::Anew("requeued"),
            JobFate::RunsAgain,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                let login = scene.site.lab.login();
                let node = scene.node.name();
                let argv = ["sbatch", "-p", "urgent", "--exclusive", "-w", node, "-o", "/dev/null", "--wrap", "sleep 4"];
                login.command("bob", argv).run().map(drop)
            },
        )
        .arguments(&["--requeue"])
        .mend(start_now),
        Row::new(
            "suspend and resume",
            "`scontrol suspend` freezes the engine, `scontrol resume` lets it go on",
            Fate::Returns,
            JobFate::GoesOn,
            Bound::Lease,
            |scene| {
                scene.strike();
                scene.slurm(&["scontrol", "suspend", &scene.id()]).map(drop)
            },
        )
        .mend(|scene| scene.slurm(&["scontrol", "resume", &scene.id()]).map(drop))
        .core(),
        Row::new(
            "scontrol requeue",
            "`scontrol requeue JOB`: the next run gets a server of its own",
            Fate::Anew("requeued"),
            JobFate::RunsAgain,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.slurm(&["scontrol", "requeue", &scene.id()]).map(drop)
            },
        )
        .arguments(&["--requeue"])
        .mend(start_now)
        .core(),
        Row::new(
            "the node is drained",
            "`scontrol update NodeName State=DRAIN`: running jobs go on",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| node_is(scene, "drain"),
        )
        .mend(|scene| scene.site.resume_nodes()),
        Row::new(
            "the node is set down",
            "`scontrol update NodeName State=DOWN`: Slurm ends the job",
            Fate::Ends("job_ended"),
            JobFate::Is("NODE_FAIL"),
            Bound::NoneLost,
            |scene| node_is(scene, "down"),
        )
        .says(&["NODE_FAIL"])
        .arguments(&["--no-requeue"])
        .mend(|scene| scene.site.resume_nodes()),
        Row::new(
            "out of memory: the script",
            "The script takes more memory than the job has",
            Fate::Ends("job_ended"),
            JobFate::Is("OUT_OF_MEMORY"),
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.release_script()
            },
        )
        .says(&["OUT_OF_MEMORY"])
        .script("until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; exec python3 -c 'x = bytearray(1 << 30)'"),
        Row::new(
            "slurmd is restarted",
            "slurmd ends and starts again on the node",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.node.restart_slurmd()
            },
        )
        .core()
        .soak(),
        Row::new(
            "slurmctld is restarted",
            "slurmctld ends and starts again",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.site.lab.controller().stop_slurmctld()?;
                scene.until_answered(20)?;
                scene.site.lab.controller().start_slurmctld()
            },
        )
        .soak(),
        Row::new(
            "slurmctld is down at the start",
            "Another job asks for its model while slurmctld is away: srun can't make the step; the model comes once it can",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            down_at_start,
        ),
        Row::new(
            "slurmctld is down at the end",
            "The script ends while slurmctld is away",
            Fate::Ends("job_ended"),
            JobFate::Is("COMPLETED 0:0"),
            Bound::NoneLost,
            |scene| {
                scene.site.lab.controller().stop_slurmctld()?;
                scene.strike();
                scene.release_script()
            },
        )
        .script("until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done")
        .mend(|scene| scene.site.lab.controller().start_slurmctld()),
    ],
};

fn update(scene: &Scene, what: &str) -> Result<()> {
    let id = format!("JobId={}", scene.job.id);
    scene.slurm(&["scontrol", "update", &id, what]).map(drop)
}

fn node_is(scene: &Scene, state: &str) -> Result<()> {
    scene.strike();
    let name = format!("NodeName={}", scene.node.name());
    let state = format!("State={state}");
    scene
        .slurm(&["scontrol", "update", &name, &state, "Reason=test"])
        .map(drop)
}

/// Slurm lets a requeued job wait for two minutes, unless told otherwise.
fn start_now(scene: &Scene) -> Result<()> {
    scene.until("the job to be pending again", || {
        Ok(scene.job.state()? == "PENDING")
    })?;
    let mut told: Option<Instant> = None;
    scene.until("the job to run again", || {
        // 22.05 forgets what it was told before the epilog was through, and acts upon none of many in a row.
        if told.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
            told = Some(Instant::now());
            update(scene, "StartTime=now")?;
        }
        Ok(scene.job.state()? == "RUNNING")
    })
}

fn raised(scene: &Scene) -> Result<()> {
    let expires = || -> Result<i64> { Ok(scene.job.model()?["expires_ms"].as_i64().unwrap_or(0)) };
    let before = expires()?;
    scene.strike();
    update(scene, "TimeLimit=60")?;
    // The agent reads the books every half minute.
    wait_for(Duration::from_secs(45), "the new end in sserve status", || {
        Ok((expires()? >= before + 58 * 60_000).then_some(()))
    })?;
    wait_for(Duration::from_secs(75), "the old end to be past", || {
        Ok((slurm_serve::clock::now_ms() > before + 1_000).then_some(()))
    })
}

fn down_at_start(scene: &Scene) -> Result<()> {
    let controller = scene.site.lab.controller();
    // A frozen agent holds the job between its start and the server's step.
    scene.site.signal_agent(scene.node, Signal::SIGSTOP)?;
    let arguments = ["-w", scene.node.name(), "--serve-model=stub"];
    let job = scene
        .site
        .sbatch("alice", &arguments, "echo model $SERVE_MODEL")?;
    let held = job
        .wait_state(&["RUNNING"])
        .and_then(|_| controller.stop_slurmctld());
    scene.site.signal_agent(scene.node, Signal::SIGCONT)?;
    held?;
    let tried = scene.until("srun to find no slurmctld", || {
        Ok(scene
            .site
            .whole_agent_log(scene.node)?
            .contains(&format!("job={}", job.id)))
    });
    // Long enough for more than one try.
    scene.until_answered(60)?;
    controller.start_slurmctld()?;
    tried?;
    // An srun that met a node which slurmctld has not heard of yet asks again after up to a minute.
    let output = wait_for(
        Duration::from_secs(150),
        "the other job to have its model",
        || {
            let output = job.output();
            let over = job.state()? != "RUNNING";
            Ok((over || output.contains("model stub")).then_some(output))
        },
    );
    let output = output.with_context(|| job.explain())?;
    ensure!(output.contains("model stub"), "{}", job.explain());
    Ok(())
}
