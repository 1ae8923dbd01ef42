//! The job ends, or is asked to, by its owner or by itself.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

/// A step of the job's own that says when a signal reaches it.
const LISTENING: &str = r#"srun --overlap -n1 bash -c 'trap "echo a step heard USR1" USR1; echo listening
until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done' & until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; wait; exit 3"#;

/// A script that says when a signal reaches it.
const TRAPPING: &str =
    r#"trap 'echo the script heard USR1' USR1; until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; exit 3"#;

pub const GROUP: Group = Group {
    title: "The job ends",
    text: "The model leaves the catalog first, what is in flight is finished, then the engine ends.",
    rows: &[
        Row::new(
            "the script ends",
            "The batch script ends with exit code 0",
            Fate::Ends("job_ended"),
            JobFate::Is("COMPLETED 0:0"),
            Bound::NoneLost,
            script_ends,
        )
        .script("until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done")
        .log(&["has ended: "])
        .core()
        .soak(),
        Row::new(
            "the script fails",
            "The batch script ends with exit code 7",
            Fate::Ends("job_ended"),
            JobFate::Is("FAILED 7:0"),
            Bound::NoneLost,
            script_ends,
        )
        .script("until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; exit 7")
        .log(&["has ended: "])
        .soak(),
        Row::new(
            "scancel",
            "`scancel JOB` by its owner",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::NoneLost,
            |scene| cancel(scene, &[&scene.id()]),
        )
        .log(&["has ended: "])
        .core()
        .soak(),
        Row::new(
            "scancel of the batch step",
            "`scancel --batch --signal=TERM JOB`: the script alone dies of it",
            Fate::Ends("job_ended"),
            JobFate::Is("FAILED 0:15"),
            Bound::NoneLost,
            |scene| cancel(scene, &["--batch", "--signal=TERM", &scene.id()]),
        )
        .log(&["has ended: "])
        .soak(),
        Row::new(
            "scancel of the server's step",
            "`scancel JOB.STEP`, the step that `squeue -s` calls `serve`: Slurm kills a step at once",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            Bound::Gone(Duration::from_secs(1)),
            |scene| cancel(scene, &[&format!("{}.0", scene.id())]),
        )
        .core()
        .soak(),
        Row::new(
            "SIGTERM to the server's step",
            "`scancel --signal=TERM JOB.STEP`",
            Fate::Ends("cancelled"),
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| cancel(scene, &["--signal=TERM", &format!("{}.0", scene.id())]),
        )
        .says(&["step was cancelled"])
        .log(&["has ended: "]),
        Row::new(
            "scancel --signal=USR1",
            "`scancel --signal=USR1 JOB` reaches all steps, the server's too",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.job.wait_output("listening")?;
                cancel(scene, &["--signal=USR1", &scene.id()])?;
                scene.job.wait_output("a step heard USR1").map(drop)
            },
        )
        .script(LISTENING)
        .soak(),
        Row::new(
            "sbatch --signal=USR1@…",
            "`sbatch --signal=USR1@…`: Slurm signals all steps that long before the end",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| scene.job.wait_output("a step heard USR1").map(drop),
        )
        .arguments(&["--time=5", "--signal=USR1@300"])
        .script(LISTENING),
        Row::new(
            "sbatch --signal=B:USR1@…",
            "The same for the batch script alone",
            Fate::Stays,
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| scene.job.wait_output("the script heard USR1").map(drop),
        )
        .arguments(&["--time=5", "--signal=B:USR1@300"])
        .script(TRAPPING),
        Row::new(
            "sserve stop",
            "`sserve stop JOB` by its owner",
            Fate::Ends("stopped"),
            JobFate::GoesOn,
            Bound::NoneLost,
            |scene| {
                scene.strike();
                scene.owner(&["sserve", "stop", &scene.id()]).map(drop)
            },
        )
        .log(&["has ended: "])
        .soak(),
        Row::new(
            "a stream is open at scancel",
            "`scancel JOB` while an answer comes token by token: it comes to its proper end",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::NoneLost,
            |scene| {
                let stream = scene.site.open_stream(None, "none", "busy", 60)?;
                cancel(scene, &[&scene.id()])?;
                let text = stream.finish()?;
                ensure!(text.matches("\"content\":").count() >= 60, "{text}");
                Ok(())
            },
        )
        .soak(),
        Row::new(
            "one of two replicas ends",
            "`scancel JOB` while another job serves the same name: every single request is answered",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::NoneLost,
            one_of_two,
        )
        .core(),
    ],
};

fn script_ends(scene: &Scene) -> Result<()> {
    scene.strike();
    scene.release_script()
}

fn cancel(scene: &Scene, arguments: &[&str]) -> Result<()> {
    scene.strike();
    scene.owner(&[&["scancel"], arguments].concat()).map(drop)
}

fn one_of_two(scene: &Scene) -> Result<()> {
    let other = ["-w", scene.site.node(2).name(), "--serve-model=busy"];
    let other = scene.site.sbatch("alice", &other, "sleep 300")?;
    let generation = other.wait_model("ready")?["generation"].clone();
    let generation = generation.as_str().unwrap_or_default();
    scene.until("both in the catalog", || Ok(scene.watch.is_listed(generation)))?;
    cancel(scene, &[&scene.id()])?;
    scene.job.wait_end()?;
    scene.until_answered(20)?;
    let answers = scene.watch.answers();
    ensure!(
        scene.watch.answered() == scene.watch.asked(),
        "with a replica left nothing is refused: {answers}"
    );
    Ok(())
}
