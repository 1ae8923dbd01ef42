//! `lab`: labs from the command line.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serve_lab::{Cache, Lab, LabSpec, LabState, Product, Release, down, ensure_root, ensure_vllm, labs};

/// A real multi-node Slurm on one machine, in namespaces of its own. Needs root.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Bring a lab up, print its id and leave it running
    Up {
        /// Compute nodes
        #[arg(long, default_value_t = 2)]
        nodes: u16,
        /// Slurm's release: 22.05, 24.11 or 26.05
        #[arg(long, default_value_t)]
        release: Release,
        /// GPU stand-ins on each compute node
        #[arg(long, default_value_t = 2)]
        gpus: u16,
        /// Bind vLLM and the tiny model into the nodes
        #[arg(long)]
        vllm: bool,
        /// Install what was built of slurm-serve
        #[arg(long)]
        product: bool,
        /// A setting of slurm.conf, KEY=VALUE; may be repeated
        #[arg(long = "set", value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Take labs down: the one named, or all
    Down {
        /// The lab (not needed if there is one)
        id: Option<String>,
        /// Every lab, also what is left of killed ones
        #[arg(long)]
        all: bool,
    },
    /// A shell in a node
    Shell {
        /// [LAB] [NODE]: the lab isn't needed if there is one; the node is ctl, login (the default), n1, …
        #[arg(num_args = 0..=2, value_names = ["LAB", "NODE"])]
        place: Vec<String>,
        /// root, alice (in the group `models`), bob, …
        #[arg(long, default_value = "alice")]
        user: String,
    },
    /// Run a command in a node; ends with its exit code
    Exec {
        /// The lab
        id: String,
        /// ctl, login, n1, …
        node: String,
        /// root, alice (in the group `models`), bob, …
        #[arg(long, default_value = "root")]
        user: String,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// List labs and their nodes
    List,
    /// Make what is cached now: the root file system of a release
    Root {
        /// Slurm's release
        #[arg(long, default_value_t)]
        release: Release,
    },
    /// Make what is cached now: vLLM for CPUs and the tiny model
    Vllm {
        /// Slurm's release
        #[arg(long, default_value_t)]
        release: Release,
    },
    /// Take all labs down and remove the cache
    Clean,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up {
            nodes,
            release,
            gpus,
            vllm,
            product,
            settings,
        } => {
            let mut spec = LabSpec {
                release,
                nodes,
                gpus,
                vllm,
                keep: true,
                ..LabSpec::default()
            };
            for setting in settings {
                let (key, value) = setting
                    .split_once('=')
                    .with_context(|| format!("--set takes KEY=VALUE, not {setting:?}"))?;
                spec = spec.setting(key, value);
            }
            if product {
                spec = spec.product(&Product::locate()?)?;
            }
            let lab = Lab::up(spec)?;
            eprintln!("lab: {}", lab.description());
            println!("{}", lab.id());
        }
        Verb::Down { id, all } => {
            let ids = if all {
                serve_lab::all()?
            } else {
                vec![the_lab(id)?]
            };
            ids.iter().try_for_each(|id| down(id))?;
        }
        Verb::Shell { place, user } => return shell(place, &user),
        Verb::Exec {
            id,
            node,
            user,
            command,
        } => {
            let lab = Lab::attach(&id)?;
            let status = lab.node(&node)?.command(&user, command).attached()?;
            return Ok(exit_code(status));
        }
        Verb::List => list()?,
        Verb::Root { release } => println!("{}", ensure_root(&Cache::locate()?, release)?.display()),
        Verb::Vllm { release } => println!("{}", ensure_vllm(&Cache::locate()?, release)?.display()),
        Verb::Clean => {
            serve_lab::all()?.iter().try_for_each(|id| down(id))?;
            Cache::locate()?.remove()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The lab that is meant: the named one, or the only one.
fn the_lab(id: Option<String>) -> Result<String> {
    if let Some(id) = id {
        return Ok(id);
    }
    let mut ids = labs()?;
    match ids.len() {
        1 => Ok(ids.remove(0)),
        0 => bail!("there is no lab: `lab up` makes one"),
        _ => bail!("which lab? there are {}", ids.join(", ")),
    }
}

fn shell(place: Vec<String>, user: &str) -> Result<ExitCode> {
    let (id, node) = match <[String; 2]>::try_from(place) {
        Ok([id, node]) => (Some(id), Some(node)),
        Err(mut place) => match place.pop() {
            // One word is a lab if there is one of that name.
            Some(word) if labs()?.contains(&word) => (Some(word), None),
            word => (None, word),
        },
    };
    let lab = Lab::attach(&the_lab(id)?)?;
    let node = node.as_deref().unwrap_or("login");
    // `script` gives the shell a terminal of the node's own: job control works, and `srun --pty`. Commands from a pipe need none, and would
    // not end with it.
    let argv: &[&str] = if std::io::stdin().is_terminal() {
        &["script", "-q", "-c", "exec bash -i", "/dev/null"]
    } else {
        &["bash"]
    };
    let command = lab.node(node)?.command(user, argv);
    let terminal = std::env::var("TERM").unwrap_or_else(|_| "dumb".into());
    Ok(exit_code(command.env("TERM", terminal).attached()?))
}

fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn list() -> Result<()> {
    for id in labs()? {
        match LabState::load(&id) {
            Ok(state) => {
                let up = state.complete && state.hub.is_some_and(|hub| hub.is_alive());
                let names: Vec<_> = state.nodes.iter().map(|node| node.short.as_str()).collect();
                println!(
                    "{id}  Slurm {}  {}{}  {}",
                    state.release,
                    if up { "up" } else { "not up" },
                    if state.keep { ", kept" } else { "" },
                    names.join(" ")
                );
            }
            Err(error) => println!("{id}  {error:#}"),
        }
    }
    Ok(())
}
