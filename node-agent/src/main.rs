//! `slurm-serve`: everything resident. Parse, dispatch, nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use slurm_serve::config::{self, Config};
use slurm_serve::telemetry::gpu;
use slurm_serve::{agent, gateway, limits, selftest, step};

/// Models served as a property of Slurm jobs.
#[derive(Debug, Parser)]
#[command(name = "slurm-serve", version)]
struct Cli {
    /// The configuration; the default file may be missing, a named one may not.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The resident agent of a node (root).
    Agent(agent::AgentArgs),
    /// The runner inside a job's step; started by the agent.
    #[command(hide = true)]
    Step(step::StepArgs),
    /// What talks to NVIDIA's driver; started by the agent.
    #[command(hide = true)]
    Gpus(gpu::ChildArgs),
    /// The OpenAI-compatible proxy over all nodes.
    Gateway(gateway::GatewayArgs),
    /// An engine without a model, for `sserve selftest`; started by a runner.
    #[command(hide = true)]
    SelftestEngine(selftest::EngineArgs),
    /// Asks that engine, from inside the job; for `sserve selftest`.
    #[command(hide = true)]
    SelftestClient(selftest::ClientArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Step(args) => return step::main(args),
        Command::Gpus(args) => return gpu::main(&args),
        _ => {}
    }
    match resident(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slurm-serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn resident(cli: Cli) -> anyhow::Result<()> {
    if let Command::Agent(agent::AgentArgs {
        print_config: true, ..
    }) = &cli.command
    {
        print!("{}", config::DOCUMENTED);
        return Ok(());
    }
    let path = cli.config.clone().unwrap_or_else(|| config::DEFAULT_PATH.into());
    let named = cli.config.is_some();
    let config = Config::load(&path, named)?;
    if let Command::Agent(agent::AgentArgs {
        check_config: true, ..
    }) = &cli.command
    {
        println!("{}: in order", path.display());
        return Ok(());
    }
    start_log();
    limits::raise_descriptors();
    // Two workers: the agent waits for others nearly all of its time, and the node's cores are the jobs'.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Agent(_) => agent::run(config).await,
            Command::Gateway(args) => {
                let again = move || Config::load(&path, named).map_err(|e| e.to_string());
                gateway::run(config, args, again).await
            }
            Command::SelftestEngine(args) => selftest::run_engine(args).await,
            Command::SelftestClient(args) => selftest::run_client(args).await,
            Command::Step(_) | Command::Gpus(_) => Ok(()),
        }
    })
}

/// To stderr, which the service manager keeps; `RUST_LOG` chooses, `info` is the default.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}
