//! `sserve logs [-f] [-n N] [JOB]`: the server's log.

use serde::Serialize;
use slurm_serve::listing::ListedModel;

use crate::failure::Failure;
use crate::find::Agents;
use crate::job_ref::{JobRef, named_or_surrounding};
use crate::out;
use crate::words;

/// The server's log
///
/// As far as its agent has kept it (the last lines; the whole is in the file that `sserve status` names), with --follow also what
/// comes, until the model ends.
///
/// Who may: the job's owner, root, admins.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: 123, or 123_4 for a task of an array. Inside a job: that one.
    job: Option<JobRef>,
    /// Go on with what comes, until the model ends.
    #[arg(short, long)]
    follow: bool,
    /// Begin with no more than the last N kept lines (default: all that are kept).
    #[arg(short = 'n', long = "lines", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lines: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Chunk<'a> {
    lines: &'a [String],
    dropped: u64,
}

/// Runs the verb.
pub async fn run(args: Args, agents: &Agents, json: bool) -> Result<(), Failure> {
    let job = named_or_surrounding(args.job, "logs")?;
    let found = agents.find(&job).await?;
    let failure = |trouble| found.agent.failure(trouble, found.job_id);
    let mut stream = found
        .agent
        .log(found.job_id, args.lines.unwrap_or(0), args.follow)
        .await
        .map_err(failure)?;
    let mut any = false;
    while let Some(chunk) = found
        .agent
        .next_lines(&mut stream, args.follow)
        .await
        .map_err(failure)?
    {
        any = true;
        if json {
            out::json(&Chunk {
                lines: &chunk.lines,
                dropped: chunk.dropped,
            })?;
            continue;
        }
        if chunk.dropped > 0 {
            let path = words::log_path(&ListedModel::from(found.model.clone()));
            let place = path.unwrap_or_else(|| "the log's file".into());
            out::note(format!(
                "{} lines came too fast and are only in {place}",
                chunk.dropped
            ));
        }
        out::lines(&chunk.lines)?;
    }
    if !any && !json {
        let path = words::log_path(&ListedModel::from(found.model.clone()));
        out::note(match path {
            Some(path) => format!("the agent has kept no line of this log; it is in {path}"),
            None => "there is no log yet".into(),
        });
    }
    Ok(())
}
