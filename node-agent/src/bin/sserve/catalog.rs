//! `sserve catalog list|sweep`: what other catalogs hold of ours, and what is left there of models that are gone.

use std::time::Duration;

use serde::Serialize;
use slurm_serve::catalog::push::{self, Books, Held, Judgement, Settings};
use slurm_serve::config::Config;
use slurm_serve::slurm::Slurm;

use crate::failure::Failure;
use crate::out;

/// For admins: what LiteLLM and routers hold of ours, and sweeping what is left of lost nodes
///
/// Catalogs are those of the configuration ([[catalogs]]) that can be asked: LiteLLM and routers. Needs their keys, so run it as root or as
/// the gateway's user. Files and webhooks are known to the gateway alone, which sweeps them itself.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Every entry of ours, of any node and cluster
    List {
        /// Only of this catalog.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Remove entries of models whose job is over or whose node is down, and for which nobody answers
    ///
    /// Slurm is asked twice, --pause apart; what it can't say is no reason for anything. An entry whose agent or guard answers is left to
    /// them. At most a fifth of a catalog goes at once, unless --force is given. Agents and the gateway do the same now and then
    /// (catalogs.sweep_every); two at once do no harm. Exit code 0: swept, or nothing to sweep; 1: a catalog or Slurm did not answer.
    Sweep {
        /// Only this catalog.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Also more than a fifth of a catalog.
        #[arg(long)]
        force: bool,
        /// Say what would be removed, and remove nothing.
        #[arg(long)]
        dry_run: bool,
        /// Between the two questions.
        #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
        pause: Duration,
    },
}

#[derive(Serialize)]
struct Printed<'a> {
    catalog: &'a str,
    name: &'a str,
    node: &'a str,
    job: u32,
    cluster: &'a str,
    url: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'a str>,
}

/// Runs the verb.
pub async fn run(args: Args, config: &Config, json: bool) -> Result<(), Failure> {
    match args.verb {
        Verb::List { name } => {
            for settings in named(config, name.as_deref())? {
                let held = open(settings, config)?.held().await;
                for one in held.map_err(|e| failed(settings, &e.to_string()))? {
                    print(settings, &one, None, json)?;
                }
            }
            Ok(())
        }
        Verb::Sweep {
            name,
            force,
            dry_run,
            pause,
        } => {
            let slurm = Slurm::new(&config.agent);
            let cluster = cluster(config, &slurm).await?;
            let books = Books::new(slurm, config.gateway.agent_port);
            let mut trouble = Ok(());
            for settings in named(config, name.as_deref())? {
                let foreign = open(settings, config)?;
                match push::look_twice(&*foreign, &cluster, &books, pause, force, !dry_run).await {
                    Ok(judged) => judged.iter().try_for_each(|(held, judgement)| {
                        print(settings, held, Some((judgement, dry_run)), json)
                    })?,
                    // The others are swept all the same.
                    Err(e) => trouble = Err(failed(settings, &e.to_string())),
                }
            }
            trouble
        }
    }
}

fn print(
    settings: &Settings,
    held: &Held,
    judged: Option<(&Judgement, bool)>,
    json: bool,
) -> Result<(), Failure> {
    let decision = judged.map(|(judgement, dry_run)| match judgement {
        Judgement::Remove if dry_run => "would be removed",
        Judgement::Remove => "removed",
        Judgement::Stay(why) => why.as_str(),
    });
    if json {
        return out::json(&Printed {
            catalog: &settings.name,
            name: &held.name,
            node: &held.node,
            job: held.job_id,
            cluster: &held.cluster,
            url: &held.url,
            id: &held.id,
            decision,
        });
    }
    let tail = decision.map(|it| format!(": {it}")).unwrap_or_default();
    out::line(format!(
        "{}: {} of job {} on {} ({}) at {}{tail}",
        settings.name, held.name, held.job_id, held.node, held.cluster, held.url
    ))
}

fn failed(settings: &Settings, why: &str) -> Failure {
    Failure::failed(format!("catalog {}: {why}", settings.name))
}

fn open(settings: &Settings, config: &Config) -> Result<std::sync::Arc<dyn push::Foreign>, Failure> {
    push::open(settings, &config.gateway.state_dir).map_err(Failure::usage)
}

async fn cluster(config: &Config, slurm: &Slurm) -> Result<String, Failure> {
    if !config.agent.cluster_name.is_empty() {
        return Ok(config.agent.cluster_name.clone());
    }
    let conf = slurm.conf().await.map_err(|e| Failure::failed(e.to_string()))?;
    let name = conf.get("ClusterName").map(str::to_owned);
    name.ok_or_else(|| Failure::failed("no ClusterName in `scontrol show config`"))
}

/// Those that can be asked; one that is named must be among them.
fn named<'a>(config: &'a Config, name: Option<&str>) -> Result<Vec<&'a Settings>, Failure> {
    let asked = config.catalogs.iter().filter(|it| it.is_asked());
    let found: Vec<_> = asked
        .filter(|it| name.is_none_or(|name| it.name == name))
        .collect();
    match (found.is_empty(), name) {
        (false, _) => Ok(found),
        (true, Some(name)) => Err(Failure::usage(format!(
            "no catalog that can be asked is called {name:?} ([[catalogs]] in the configuration)"
        ))),
        (true, None) => Err(Failure::usage(
            "the configuration has no catalog that can be asked (kind litellm or router in [[catalogs]])",
        )),
    }
}
