//! `sserve`: see and steer the models that Slurm jobs serve. One file per verb.

mod agent;
mod catalog;
mod doctor;
mod failure;
mod find;
mod follow;
mod gpus;
mod health;
mod hold;
mod job_ref;
mod list;
mod logs;
mod out;
mod plugin;
mod recipes;
mod selftest;
mod status;
mod stop;
mod table;
mod text;
mod url;
mod wait;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use slurm_serve::config::{Config, DEFAULT_PATH};

use crate::failure::{EXIT_CODES, Exit, Failure};
use crate::find::Agents;

/// See and steer the models that Slurm jobs serve (`sbatch --serve-model=NAME …`).
#[derive(Debug, Parser)]
#[command(name = "sserve", version, after_help = EXIT_CODES, after_long_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    /// The settings' file; a missing default file means the defaults.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print results as JSON, one object a line. Errors stay one line on stderr. Times in it are milliseconds since the epoch.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(list::Args),
    Status(status::Args),
    Logs(logs::Args),
    Stop(stop::Args),
    Wait(wait::Args),
    Url(url::Args),
    Hold(hold::Args),
    Gpus(gpus::Args),
    Recipes(recipes::Args),
    Health(health::Args),
    Doctor(doctor::Args),
    Selftest(selftest::Args),
    Catalog(catalog::Args),
    /// For admins: the SPANK plugin as a file
    Plugin(plugin::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.exit != Exit::ReaderLeft {
                out::note(&failure.line);
            }
            failure.exit.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    // Needs no settings, and must work where they are broken.
    let verb = match cli.verb {
        Verb::Plugin(args) => return plugin::run(args, cli.json),
        // Reads them within its time.
        Verb::Health(args) => return health::run(&args, cli.config.as_deref()),
        other => other,
    };
    let named = cli.config.as_deref();
    let config = match &verb {
        // Says itself what is wrong with them.
        Verb::Doctor(_) => Config::default(),
        _ => Config::load(named.unwrap_or(Path::new(DEFAULT_PATH)), named.is_some())
            .map_err(|e| Failure::usage(e.to_string()))?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let agents = Agents::new(config);
    let json = cli.json;
    let done = runtime.block_on(async {
        match verb {
            Verb::List(args) => list::run(args, &agents, json).await,
            Verb::Status(args) => status::run(args, &agents, json).await,
            Verb::Logs(args) => logs::run(args, &agents, json).await,
            Verb::Stop(args) => stop::run(args, &agents, json).await,
            Verb::Wait(args) => wait::run(args, &agents, json).await,
            Verb::Url(args) => url::run(args, &agents, json).await,
            Verb::Hold(args) => hold::run(args, &agents, json).await,
            Verb::Gpus(args) => gpus::run(args, &agents, json).await,
            Verb::Recipes(args) => recipes::run(args, agents.config(), json).await,
            Verb::Plugin(args) => plugin::run(args, json),
            Verb::Health(args) => health::run(&args, named),
            Verb::Catalog(args) => catalog::run(args, agents.config(), json).await,
            Verb::Selftest(args) => selftest::run(args, agents, json).await,
            Verb::Doctor(args) => doctor::run(args, named, json).await,
        }
    });
    // A look-up that hangs in the C library (munge, a name) must not keep the program.
    runtime.shutdown_background();
    done
}
