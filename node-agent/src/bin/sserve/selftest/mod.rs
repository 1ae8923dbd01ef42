//! `sserve selftest`: a job through each ending, on this very cluster, with its cgroups, its systemd and its GPUs.
//!
//! | file | |
//! |---|---|
//! | `row` | what is tested, in which order, and what comes out |
//! | `bench` | jobs submitted, followed and ended as their user |
//! | `endings` | the ways that are asked for: script, scancel, time limit, step |
//! | `faults` | the ways that are not: engine, runner, agent |
//! | `surroundings` | what engine and job see, and what is left behind |

mod bench;
mod endings;
mod faults;
mod row;
mod surroundings;

use std::time::Duration;

use serde::Serialize;
use slurm_serve::selftest::RECIPE;

use self::bench::{Bench, Plan};
use self::row::{Outcome, Row, Verdict};
use crate::failure::Failure;
use crate::find::Agents;
use crate::out;

/// For admins: a job through each ending, on this cluster: PASS, FAIL or SKIP for each, with evidence
///
/// Submits jobs with --serve-model to one node, one after the other, and takes them through: the script's end, an exit code, scancel, scancel
/// under a long request (KillWait), the time limit, scancel of the server's step alone, the engine killed, the runner killed, and, if allowed, a
/// restart of the agent. Compares what engine and script see of GPUs and cgroups, and looks for what is left behind. The engine is one
/// without a model, by a recipe that is put into the user's ~/.config/slurm-serve/models.d and taken away again; no GPU memory is used.
///
/// Run it on the node that is tested, as root with --user, to have all rows; elsewhere, or as an ordinary user, some are SKIP, with the reason.
/// Takes half a minute, as an ordinary user two minutes more (for a time limit). Other jobs are left alone.
///
/// Exit code 0: no FAIL; 1: at least one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node, by Slurm's name; this one, if left out.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Whose jobs they are to be; needed as root, and only root may say it.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// GPUs of each job; 1 on a node that has some, if left out.
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// Allow a restart of the node's agent, by this command if one is given.
    #[arg(long, value_name = "COMMAND", num_args = 0..=1, require_equals = true,
          default_missing_value = "systemctl restart slurm-serve-agent")]
    restart_agent: Option<String>,
    /// How long a job may wait for its turn.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    patience: Duration,
    /// Only these rows.
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    only: Vec<Row>,
    /// Print the recipe of the engine, and do nothing.
    #[arg(long)]
    print_recipe: bool,
    /// Further options of sbatch, as in `-- --partition=debug --account=ops`.
    #[arg(last = true, value_name = "SBATCH_OPTION")]
    sbatch: Vec<String>,
}

#[derive(Serialize)]
struct Printed<'a> {
    row: &'a str,
    verdict: Verdict,
    evidence: &'a str,
}

/// Runs the verb.
pub async fn run(args: Args, agents: Agents, json: bool) -> Result<(), Failure> {
    if args.print_recipe {
        return out::lines(RECIPE.lines());
    }
    let rows: Vec<Row> = match args.only.is_empty() {
        true => Row::all().collect(),
        false => Row::all().filter(|row| args.only.contains(row)).collect(),
    };
    let plan = Plan {
        node: args.node,
        user: args.user,
        gpus: args.gpus,
        restart_agent: args.restart_agent,
        patience: args.patience,
        sbatch: args.sbatch,
    };
    let bench = Bench::set_up(agents, plan)
        .await
        .map_err(|e| Failure::failed(format!("{e:#}")))?;
    let tested = tokio::select! {
        tested = test(&bench, &rows, json) => tested,
        _ = tokio::signal::ctrl_c() => Err(Failure::failed("interrupted; its jobs are cancelled")),
    };
    bench.clean_up().await;
    match tested? {
        0 => Ok(()),
        failed => Err(Failure::failed(format!(
            "{failed} of {} rows failed on {}",
            rows.len(),
            bench.node
        ))),
    }
}

/// Runs the rows and prints each as it comes; how many failed.
async fn test(bench: &Bench, rows: &[Row], json: bool) -> Result<usize, Failure> {
    let mut counts = [0; 3];
    let mut nothing_served = false;
    for row in rows {
        let outcome = match nothing_served {
            true => Outcome::skip("no model is served here at all: see the first row"),
            false => row.run(bench).await,
        };
        nothing_served |= *row == Row::Serve && outcome.verdict == Verdict::Fail;
        counts[outcome.verdict as usize] += 1;
        let name = row.name();
        match json {
            true => out::json(&Printed {
                row: &name,
                verdict: outcome.verdict,
                evidence: &outcome.evidence,
            })?,
            false => out::line(format!(
                "{} {name:<14} {}",
                outcome.verdict.word(),
                outcome.evidence
            ))?,
        }
    }
    let [passed, failed, skipped] = counts;
    if !json {
        out::line(format!(
            "{}: {passed} PASS, {failed} FAIL, {skipped} SKIP",
            bench.node
        ))?;
    }
    Ok(failed)
}
