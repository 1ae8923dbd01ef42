//! `sserve stop [JOB]`: ends the model, not the job.

use std::ops::ControlFlow;
use std::time::Duration;

use slurm_serve::listing::ListedModel;

use crate::failure::{Exit, Failure};
use crate::find::Agents;
use crate::follow::{Patience, follow};
use crate::job_ref::{JobRef, named_or_surrounding};
use crate::out;
use crate::words;

/// How long an agent may be away while its model drains.
const AGENT_AWAY: Duration = Duration::from_secs(30);

/// End a job's model, not the job
///
/// The model leaves the catalogs, finishes the requests in flight (as long as its recipe allows), and stops. The job runs on; `scancel JOB` ends that.
///
/// Ends as soon as the agent has taken the order, or with --wait when the model is gone. Stopping what has ended is no error.
/// Who may: the job's owner, root, admins.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
    /// Wait until it is gone.
    #[arg(short, long)]
    wait: bool,
    /// With --wait: no longer than this ("90s", "10m").
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5m", requires = "wait")]
    timeout: Duration,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let job = named_or_surrounding(args.job, "stop")?;
    let mut found = agents.find(&job).await?;
    let ordered = found.agent.stop(found.job_id).await;
    ordered.map_err(|trouble| found.agent.failure(trouble, found.job_id))?;
    let was_over = words::is_over(&ListedModel::from(found.model.clone()));
    if args.wait && !was_over {
        let patience = Patience {
            silent: Some(AGENT_AWAY),
            forgotten: AGENT_AWAY,
        };
        let gone = follow(&found, patience, |model, _| {
            match words::is_over(&ListedModel::from(model.clone())) {
                true => ControlFlow::Break(model.clone()),
                false => ControlFlow::Continue(()),
            }
        });
        found.model = tokio::time::timeout(args.timeout, gone).await.map_err(|_| {
            Failure::new(
                Exit::Timeout,
                format!(
                    "job {job}: its model is not gone after {}; `sserve status {job}` shows where it is, `scancel {job}` ends the job",
                    humantime::format_duration(args.timeout)
                ),
            )
        })??;
    }
    let model = ListedModel::from(found.model);
    if json {
        return out::json(&model);
    }
    out::line(match (was_over, args.wait) {
        (true, _) => format!("{}: had already {}", words::which(&model), model.state),
        (false, true) => words::ending(&model),
        (false, false) => format!(
            "{}: stopping; it finishes what is in flight first",
            words::which(&model)
        ),
    })
}
