//! `sserve hold`: stays until the model ends, so that a job that only serves has a script.

use std::ops::ControlFlow;
use std::time::Duration;

use slurm_serve::listing::ListedModel;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::failure::{Exit, Failure};
use crate::find::{Agents, Found};
use crate::follow::{Patience, Told, follow};
use crate::job_ref::{JobRef, named_or_surrounding};
use crate::out;
use crate::words;

/// How long an agent that does not answer is asked for the model at first: as long as a waiting job bears it.
const AGENT_AWAY: Duration = Duration::from_secs(60);
/// Between two tries.
const BETWEEN_ASKING: Duration = Duration::from_secs(1);

/// Stay until the job's model ends: the script of a job that only serves
///
/// `sbatch --serve-model=NAME --wrap "sserve hold"` is such a job.
///
/// Exit code 0 if the end was asked for (`sserve stop`, the job's end, SIGTERM to this command, which ends it at once), 1 with the
/// cause if the model failed. Survives restarts of the agent. Who may: the job's owner.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let mut term = signal(SignalKind::terminate())
        .map_err(|e| Failure::failed(format!("cannot watch for SIGTERM: {e}")))?;
    let end = tokio::select! {
        end = until_over(args, agents) => end?,
        _ = term.recv() => {
            out::note("asked to end (SIGTERM); the model ends with its job");
            return Ok(());
        }
    };
    let Some(model) = end else {
        out::note("the job is being ended, and its model with it");
        return Ok(());
    };
    if json {
        out::json(&model)?;
    }
    match model.state.as_str() {
        "failed" => Err(Failure::failed(words::ending(&model))),
        _ => {
            out::note(words::ending(&model));
            Ok(())
        }
    }
}

/// The model when it is over; `None`: its job is being ended.
async fn until_over(args: Args, agents: &Agents) -> Result<Option<ListedModel>, Failure> {
    let job = named_or_surrounding(args.job, "hold")?;
    let found = find(&job, agents).await?;
    let settings = &agents.config().agent;
    let patience = Patience {
        // The job's own time limit ends this, and a model does not need its agent to go on answering requests.
        silent: None,
        forgotten: settings.recover_timeout + settings.runner_timeout + settings.recover_timeout,
    };
    let mut told = Told::default();
    follow(&found, patience, |model, job_ending| {
        let model = ListedModel::from(model.clone());
        if words::is_over(&model) {
            return ControlFlow::Break(Some(model));
        }
        if job_ending {
            return ControlFlow::Break(None);
        }
        if told.is_news(&model.state, &model.progress, Instant::now()) {
            out::note(match model.state.as_str() {
                "ready" | "retiring" => format!("{} is ready at {}", words::which(&model), model.base_url),
                _ => words::progress(&model),
            });
        }
        ControlFlow::Continue(())
    })
    .await
}

/// The job's model. An agent that is just being restarted must not end a job that would serve for hours, so it is asked again
/// while it does not answer, and while it may still be waiting for its runners to come back.
async fn find(job: &JobRef, agents: &Agents) -> Result<Found, Failure> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let failure = match agents.find(job).await {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        let patience = match failure.exit {
            Exit::Unreachable => AGENT_AWAY,
            Exit::NotFound => agents.config().agent.recover_timeout,
            _ => return Err(failure),
        };
        if begun.elapsed() >= patience {
            return Err(failure);
        }
        if !told {
            out::note(format!(
                "{failure}; asking again for {}",
                humantime::format_duration(patience)
            ));
            told = true;
        }
        tokio::time::sleep(BETWEEN_ASKING).await;
    }
}
