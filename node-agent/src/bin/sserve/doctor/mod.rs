//! `sserve doctor`: this node's set-up, looked at piece by piece. Changes nothing. One file per piece; each adds its rows.

mod agent;
mod finding;
mod gpus;
mod host;
mod machine;
mod plugin;
mod ports;
mod recipes;
mod slurm;
mod tls;

use std::path::Path;

use serde::Serialize;

pub use self::gpus::by_slurm as gpus_by_slurm;

use self::finding::{Finding, Findings, Verdict};
use self::host::{Host, Role};
use crate::failure::Failure;
use crate::out;

/// For admins: this node's set-up, each piece with what was seen and what to do
///
/// Looks at settings, plugin, running slurmd, agent, TLS, munge, slurm.conf, recipes, GPUs, ports, clock and disks; changes nothing. As root it
/// sees all; what a user may not see is SKIP, and says so. On a login node it leaves out what only a compute node has.
///
///   OK    as it should be
///   WARN  works, with the consequence that is named
///   FAIL  models are not served here, or not as they should be
///   SKIP  could not be looked at, and why
///
/// Exit code 0: no FAIL; 1: at least one.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Show only what is not OK.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    node: &'a str,
    role: Role,
    checks: &'a [Finding],
}

/// Runs the verb with the settings of `named`, else the default file's.
pub async fn run(args: Args, named: Option<&Path>, json: bool) -> Result<(), Failure> {
    let mut found = Findings::default();
    let host = Host::look(named, &mut found).await;
    plugin::look(&host, &mut found);
    agent::look(&host, &mut found).await;
    tls::look(&host, &mut found);
    machine::munge(&mut found).await;
    slurm::look(&host, &mut found);
    recipes::look(&host, &mut found);
    gpus::look(&host, &mut found).await;
    ports::look(&host, &mut found);
    machine::look(&host, &mut found).await;

    if json {
        out::json(&Report {
            node: &host.node,
            role: host.role,
            checks: &found.0,
        })?;
    } else {
        let shown = found
            .0
            .iter()
            .filter(|finding| !args.quiet || finding.verdict != Verdict::Ok);
        out::lines(shown.flat_map(rows))?;
        out::line(summary(&host, &found))?;
    }
    match found.count(Verdict::Fail) {
        0 => Ok(()),
        n => Err(Failure::failed(format!(
            "{n} of {} checks failed on {}",
            found.0.len(),
            host.node
        ))),
    }
}

fn rows(finding: &Finding) -> Vec<String> {
    let verdict = match finding.verdict {
        Verdict::Ok => "OK",
        Verdict::Warn => "WARN",
        Verdict::Fail => "FAIL",
        Verdict::Skip => "SKIP",
    };
    let mut rows = vec![format!("{verdict:<5} {:<14} {}", finding.check, finding.seen)];
    rows.extend(finding.todo.iter().map(|todo| format!("{:20} -> {todo}", "")));
    rows
}

fn summary(host: &Host, found: &Findings) -> String {
    let count = |verdict| found.count(verdict);
    let kind = match host.role {
        Role::Compute => "compute node",
        Role::Login => "login node (Slurm knows no node of this name, and no slurmd runs)",
    };
    format!(
        "{}, {kind}: {} OK, {} WARN, {} FAIL, {} SKIP",
        host.node,
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail),
        count(Verdict::Skip)
    )
}
