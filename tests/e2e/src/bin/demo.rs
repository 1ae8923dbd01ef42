//! `make demo` and `make lab`: the product on a lab, to look at.

use std::process::ExitCode;

use anyhow::Result;
use serve_e2e::{Engine, Options, Site, tour};

const USAGE: &str = "usage: demo [--keep] [--nodes N] [--stub] [--no-tour]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let (mut options, mut with_tour) = (
        Options {
            engine: Engine::Real,
            shipped_recipes: true,
            ..Options::default()
        },
        true,
    );
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--keep" => options.keep = true,
            "--stub" => options.engine = Engine::Stub,
            "--no-tour" => with_tour = false,
            "--nodes" => {
                options.nodes = arguments
                    .next()
                    .and_then(|n| n.parse().ok())
                    .ok_or_else(|| anyhow::anyhow!(USAGE))?
            }
            _ => anyhow::bail!(USAGE),
        }
    }
    println!(
        "== a lab of {} compute nodes, with an agent on each and a gateway on the login node",
        options.nodes
    );
    let site = Site::up(&options)?;
    println!("   lab {} is up", site.lab.id());
    if with_tour {
        println!("== the path of a served model");
        let summary = tour::tour(&site, "tiny", &mut |line| println!("   {line}"))?;
        println!(
            "== done: everything as it should be, nothing left behind\n{}",
            summary.text().trim_end()
        );
    }
    if options.keep {
        let id = site.lab.id();
        println!(
            "== kept. A shell on its login node as alice: make lab-shell (or: make lab-shell NODE=n1 LAB_USER=root)\n   \
             in it: sbatch --serve-model=tiny --wrap 'sserve hold'; sserve list; curl -s http://127.0.0.1:8700/v1/models\n   \
             make lab-down takes lab {id} down"
        );
    }
    Ok(())
}
