//! `sserve wait [JOB]`: until the model is ready.

use std::ops::ControlFlow;
use std::time::Duration;

use slurm_serve::listing::ListedModel;
use tokio::time::Instant;

use crate::agent::nothing_there;
use crate::failure::{Exit, Failure};
use crate::find::{Agents, Found, UNTIL_KNOWN, Whereabouts};
use crate::follow::{Patience, Told, follow};
use crate::job_ref::{JobRef, named_or_surrounding};
use crate::out;
use crate::words;

/// The first pause between two questions to slurmctld about a job that is pending; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest: slurmctld serves the whole cluster.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Between two questions to the agent of a job that has just started.
const BETWEEN_STARTED: Duration = Duration::from_secs(1);
/// How long an agent may be away: as long as a waiting job bears it.
const AGENT_AWAY: Duration = Duration::from_secs(60);

/// Wait until a job's model is ready
///
/// A job that is still pending is waited for too. What happens meanwhile is told on stderr.
///
/// Exit code 0: it is ready. 1: it failed or ended, with the cause. 124: --timeout passed. Who may: the job's owner, root, admins.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
    /// Wait no longer than this ("90s", "10m", "1h 30m"). Without it, as long as the recipe's readiness deadline lets it.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Tell nothing while waiting.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let job = named_or_surrounding(args.job, "wait")?;
    let waiting = until_ready(&job, agents, args.quiet);
    let (model, ready) = match args.timeout {
        None => waiting.await?,
        Some(limit) => tokio::time::timeout(limit, waiting).await.map_err(|_| {
            Failure::new(
                Exit::Timeout,
                format!(
                    "job {job}: not ready within {}; `sserve status {job}` shows where it is",
                    humantime::format_duration(limit)
                ),
            )
        })??,
    };
    if json {
        out::json(&model)?;
    }
    match ready {
        true if json => Ok(()),
        true => out::line(format!("{} is ready at {}", words::which(&model), model.base_url)),
        false => Err(Failure::failed(words::ending(&model))),
    }
}

/// The model once it is decided, and whether it is ready.
async fn until_ready(job: &JobRef, agents: &Agents, quiet: bool) -> Result<(ListedModel, bool), Failure> {
    let found = until_known(job, agents, quiet).await?;
    let patience = Patience {
        silent: Some(AGENT_AWAY),
        forgotten: AGENT_AWAY,
    };
    let mut told = Told::default();
    follow(&found, patience, |model, _| {
        let model = ListedModel::from(model.clone());
        match model.state.as_str() {
            // Its job may use one that is about to retire.
            "ready" | "retiring" => ControlFlow::Break((model, true)),
            "draining" | "ended" | "failed" => ControlFlow::Break((model, false)),
            _ => {
                if !quiet && told.is_news(&model.state, &model.progress, Instant::now()) {
                    out::note(words::progress(&model));
                }
                ControlFlow::Continue(())
            }
        }
    })
    .await
}

/// Until the job has its nodes, and an agent knows a model of it.
async fn until_known(job: &JobRef, agents: &Agents, quiet: bool) -> Result<Found, Failure> {
    let mut told = String::new();
    let mut started: Option<Instant> = None;
    let mut next_pause = FIRST_PAUSE;
    loop {
        let (pause, news) = match agents.look(job).await? {
            Whereabouts::Found(found) => return Ok(*found),
            Whereabouts::Pending(reason) => {
                started = None;
                let pause = next_pause;
                next_pause = (pause * 2).min(LONGEST_PAUSE);
                (pause, format!("job {job} is pending{reason}"))
            }
            Whereabouts::Nothing(place) => {
                let running = matches!(place.state.as_str(), "RUNNING" | "CONFIGURING" | "SUSPENDED");
                let since = *started.get_or_insert_with(Instant::now);
                if !running || since.elapsed() >= UNTIL_KNOWN {
                    return Err(nothing_there(job));
                }
                (
                    BETWEEN_STARTED,
                    format!("job {job} has just started; no model of it is known yet"),
                )
            }
        };
        if !quiet && news != told {
            out::note(&news);
            told = news;
        }
        tokio::time::sleep(pause).await;
    }
}
