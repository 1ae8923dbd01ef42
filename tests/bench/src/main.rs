//! The benchmarks: what the product costs and how quick it is, on a lab, beside what people use today.
//!
//! | file | what it is |
//! |---|---|
//! | `bed` | the lab that everything runs on |
//! | `stats`, `report` | intervals; table and JSON |
//! | `http` | a client that adds next to nothing |
//! | `srun`, `slurmd_log` | what an untagged job pays |
//! | `listed`, `registry` | how soon a ready model is in the gateway's list |
//! | `gone` | how soon a cancelled model leaves the gateway, and what breaks |
//! | `guard` | what the guard in front of an engine costs a request |
//! | `gateway` | the gateway beside other proxies |
//! | `fan_in` | one gateway and a thousand agents |
//! | `agent` | what the agent takes from a node |
//!
//! Nothing here fails because of a figure: whether a goal is kept stands in the table.

mod agent;
mod bed;
mod fan_in;
mod gateway;
mod gone;
mod guard;
mod http;
mod listed;
mod registry;
mod report;
mod slurmd_log;
mod srun;
mod stats;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serve_e2e::Site;

use bed::Effort;
use listed::Plan;
use report::Row;

/// The benchmarks of slurm-serve, on a lab of their own (root needed)
///
/// Each prints a table and writes target/bench/NAME.json. Run them on a machine that does nothing else.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which; all of them if none is named.
    names: Vec<Name>,
    /// Fewer rounds: for a look, not for figures.
    #[arg(long)]
    quick: bool,
}

/// A benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// What an untagged srun pays for the plugin.
    Srun,
    /// From an engine's being ready to the gateway's list, with the stub engine.
    Listed,
    /// The same with the real vLLM.
    ListedVllm,
    /// From scancel to gone from the gateway, under load.
    Gone,
    /// What the guard adds to a request and to a token.
    Guard,
    /// The gateway beside nginx, smg, sglang-router, vllm-router and LiteLLM.
    Gateway,
    /// One gateway and a thousand agents.
    FanIn,
    /// Memory and CPU of the agent, size of the plugin.
    Agent,
}

impl Name {
    fn measure(self, site: &Site, effort: Effort) -> Result<Vec<Row>> {
        match self {
            Self::Srun => srun::measure(site, effort),
            Self::Listed => listed::measure(site, &Plan::stub(effort)),
            Self::ListedVllm => listed::measure(site, &Plan::vllm(effort)),
            Self::Gone => gone::measure(site, effort),
            Self::Guard => guard::measure(site, effort),
            Self::Gateway => gateway::measure(site, effort),
            Self::FanIn => fan_in::measure(effort),
            Self::Agent => agent::measure(site, effort),
        }
    }

    fn text(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let names = match arguments.names.as_slice() {
        [] => Name::value_variants(),
        named => named,
    };
    let start = Instant::now();
    println!("== {}", machine());
    let site = bed::up(names.contains(&Name::ListedVllm))?;
    let effort = Effort {
        quick: arguments.quick,
    };
    for name in names {
        let begun = Instant::now();
        println!("\n== {}", name.text());
        let rows = name.measure(&site, effort)?;
        print!("{}", report::table(&rows));
        let path = report::write(&name.text(), &rows)?;
        println!("  ({:.0} s; {})", begun.elapsed().as_secs_f64(), path.display());
    }
    site.down()?;
    println!("\n== done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What it runs on, and whether it is at rest.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    let busy = match load.parse::<f64>() {
        Ok(load) if load >= 0.5 => ": BUSY, these figures are not worth much",
        _ => "",
    };
    format!("{cores} cores, Linux {}, load {load}{busy}", kernel.trim())
}
