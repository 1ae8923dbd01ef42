//! The ways in which a model ends that somebody asked for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slurm_serve::kill_wait::end_budget;
use slurm_serve::selftest::{Answer, RECIPE, TOKEN};
use slurm_serve::step::Parts;
use slurm_serve_proto::v1::{Cause, Model};
use slurm_serve_recipe::Recipe;

use super::bench::{Bench, SOON, Serving, field, until};
use super::row::Outcome;

/// A job of which the time limit is one minute, and what Slurm may add.
const A_MINUTE: Duration = Duration::from_secs(180);

/// Ready when the script starts, and answering.
pub async fn serve(bench: &Bench) -> Result<Outcome> {
    let submitted = Instant::now();
    let id = bench.submit("exec slurm-serve selftest-client", &[]).await?;
    bench.started(id).await?;
    let started = submitted.elapsed();
    let state = bench.ended(id, SOON * 2).await?;
    let output = bench.output(id).await?;
    let told = || output.lines().next_back().unwrap_or_default().to_owned();
    ensure!(state == "COMPLETED", "job {id} is {state}: {}", told());
    let answer = output
        .lines()
        .find_map(|line| serde_json::from_str::<Answer>(line).ok());
    let answer = answer.with_context(|| format!("job {id} got no answer: {}", told()))?;
    ensure!(
        answer.engine.uid == answer.own.uid,
        "the engine runs as uid {}, the job is of {}",
        answer.engine.uid,
        answer.own.uid
    );
    *bench
        .answer
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(answer);
    Ok(Outcome::pass(format!(
        "job {id}: its turn after {:.1?}, served, asked from inside, and over after {:.1?}",
        started,
        submitted.elapsed()
    )))
}

/// The script's end.
pub async fn script_ends(bench: &Bench) -> Result<Outcome> {
    let id = bench.submit("true", &[]).await?;
    bench.started(id).await?;
    let state = bench.ended(id, SOON * 2).await?;
    ensure!(state == "COMPLETED", "job {id} is {state}");
    over(bench, id, Cause::JobEnded).await?;
    Ok(Outcome::pass(format!(
        "job {id} COMPLETED, its model ended with it"
    )))
}

/// An exit code of the script's own.
pub async fn exit_code(bench: &Bench) -> Result<Outcome> {
    let id = bench.submit("exit 3", &[]).await?;
    bench.started(id).await?;
    let state = bench.ended(id, SOON * 2).await?;
    let record = bench.slurm.job_record(id).await?;
    let code = field(&record, "ExitCode").unwrap_or_default().to_owned();
    ensure!(
        state == "FAILED" && code == "3:0",
        "job {id} is {state} with exit code {code}, not FAILED with 3:0"
    );
    over(bench, id, Cause::JobEnded).await?;
    Ok(Outcome::pass(format!(
        "job {id} FAILED with 3:0, the script's own"
    )))
}

/// scancel of an idle model's job.
pub async fn scancel(bench: &Bench) -> Result<Outcome> {
    let job = bench.serving(&[]).await?;
    let asked = Instant::now();
    bench.scancel(&job.id.to_string()).await?;
    bench.model_over(job.id, SOON).await?;
    let gone = asked.elapsed();
    let state = bench.ended(job.id, SOON).await?;
    ensure!(state == "CANCELLED", "job {} is {state}", job.id);
    let ended = asked.elapsed();
    over(bench, job.id, Cause::Cancelled).await?;
    Ok(Outcome::pass(format!(
        "job {} CANCELLED; model over after {gone:.1?}, job after {ended:.1?}",
        job.id
    )))
}

/// scancel while a request is in flight that takes nearly all the time there is.
pub async fn kill_wait(bench: &Bench) -> Result<Outcome> {
    let kill_wait = bench.slurm.kill_wait().await?;
    let wished = Recipe::parse_one(RECIPE)?.drain_timeout;
    let settle = bench.agents.config().agent.settle_timeout;
    let drain = Parts::fit(end_budget(kill_wait), settle, wished).drain;
    let second = Duration::from_secs(1);
    if drain < second * 2 {
        return Ok(Outcome::skip(format!(
            "KillWait is {kill_wait:?}, which leaves requests in flight {drain:.1?}: see `sserve doctor`"
        )));
    }
    let job = bench.serving(&[]).await?;
    let tokens = u32::try_from(((drain - second).as_millis() / TOKEN.as_millis()).max(1))?;
    let long = async {
        let answer = job.ask(tokens).await;
        (answer, Instant::now())
    };
    let end = async {
        // Its runner tells every second what is in flight.
        until("the request to be in flight", TOKEN * tokens, async || {
            Ok((bench.find(job.id).await?.model.in_flight > 0).then_some(()))
        })
        .await?;
        bench.scancel(&job.id.to_string()).await?;
        Ok::<_, anyhow::Error>(Instant::now())
    };
    let ((answer, answered), cancelled) = tokio::join!(long, end);
    let cancelled = cancelled?;
    let after = answered.saturating_duration_since(cancelled);
    answer.with_context(|| format!("a request of {:.1?}, with KillWait {kill_wait:?}", TOKEN * tokens))?;
    let state = bench.ended(job.id, SOON + kill_wait).await?;
    ensure!(state == "CANCELLED", "job {} is {state}", job.id);
    Ok(Outcome::pass(format!(
        "job {}: a request of {:.1?} was answered {after:.1?} after scancel; KillWait is {kill_wait:?}",
        job.id,
        TOKEN * tokens
    )))
}

/// The time limit, brought near by Slurm's operator where we are root, else waited for.
pub async fn time_limit(bench: &Bench) -> Result<Outcome> {
    let job = bench.serving(&["--time=1"]).await?;
    let near = match bench.is_root {
        true => bench.slurm.end_soon(job.id).await.is_ok(),
        false => false,
    };
    let state = bench.ended(job.id, A_MINUTE).await?;
    ensure!(state == "TIMEOUT", "job {} is {state}", job.id);
    over(bench, job.id, Cause::TimeLimit).await?;
    Ok(Outcome::pass(format!(
        "job {} TIMEOUT, and its model says so{}",
        job.id,
        if near { " (its end was brought near)" } else { "" }
    )))
}

/// scancel of the step that serves.
pub async fn server_step(bench: &Bench) -> Result<Outcome> {
    let job = bench.serving(&[]).await?;
    let step = bench.slurm.step_named(job.id, "serve").await?;
    let step = step.with_context(|| format!("job {} has no step of the name serve", job.id))?;
    bench.scancel(&step).await?;
    let model = bench.model_over(job.id, SOON).await?;
    still_runs(bench, &job).await?;
    Ok(Outcome::pass(format!(
        "step {step} was cancelled: the model is over ({}), job {} goes on",
        cause(&model),
        job.id
    )))
}

/// The job has not noticed.
pub async fn still_runs(bench: &Bench, job: &Serving) -> Result<()> {
    let state = bench.state(job.id).await?;
    ensure!(state == "RUNNING", "job {} is {state}, and should go on", job.id);
    Ok(())
}

/// A cause in words.
pub fn cause(model: &Model) -> String {
    why(model)
        .as_str_name()
        .trim_start_matches("CAUSE_")
        .to_lowercase()
        .replace('_', " ")
}

/// The cause that a model tells of its end.
pub fn why(model: &Model) -> Cause {
    model
        .ending
        .as_ref()
        .map_or(Cause::Unspecified, |ending| ending.cause())
}

/// The model of a job is over, and tells this cause; it may learn it from Slurm a moment after its end.
async fn over(bench: &Bench, id: u32, wanted: Cause) -> Result<()> {
    let mut told = String::new();
    let waited = until("its cause to be told", SOON, async || {
        let model = bench.model_over(id, SOON).await?;
        told = cause(&model);
        Ok((why(&model) == wanted).then_some(()))
    })
    .await;
    waited.with_context(|| {
        format!(
            "the model of job {id} says {told:?} of its end, and not {:?}",
            wanted.as_str_name()
        )
    })
}
