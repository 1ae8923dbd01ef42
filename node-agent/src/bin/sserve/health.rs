//! `sserve health`: does the agent of this node answer? For Slurm's HealthCheckProgram, so it is quick, and it ends in time whatever hangs.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use slurm_serve::client::AgentChannel;
use slurm_serve::config::{Config, DEFAULT_PATH};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::failure::Failure;
use crate::out;

/// For admins: whether the agent of this node answers, in milliseconds (exit code 0 or 1, one line)
///
/// For Slurm's HealthCheckProgram and the like: jobs with --serve-model fail on a node whose agent does not answer, and an array of them
/// fails one after the other. Changes nothing, asks no other node, needs no rights. docs/install.md shows how to wire it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Longer than this it never takes, even if the agent hangs.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// What the rest of the program may need beyond the agent's time: to start, to read the settings, to write its line.
const MARGIN: Duration = Duration::from_millis(200);

/// Runs the verb with the settings of `named`, else the default file's.
pub fn run(args: &Args, named: Option<&Path>) -> Result<(), Failure> {
    let limit = args.timeout;
    let (sender, receiver) = mpsc::channel();
    let named = named.map(Path::to_path_buf);
    // A thread of its own: a read of the settings from a dead file server can't be given a deadline, but it can be left behind.
    std::thread::spawn(move || {
        // Nobody may be left to tell.
        let _ = sender.send(check(named, limit));
    });
    match receiver.recv_timeout(limit + MARGIN) {
        Ok(Ok(line)) => out::line(line),
        Ok(Err(why)) => Err(Failure::failed(why)),
        Err(_) => Err(Failure::failed(format!(
            "no answer within {limit:?}, not even of this program: is the settings' file on a file system that hangs?"
        ))),
    }
}

fn check(named: Option<PathBuf>, limit: Duration) -> Result<String, String> {
    let path = named.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
    let config = Config::load(path, named.is_some()).map_err(|e| e.to_string())?;
    let socket = config.agent.socket;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("cannot start: {e}"))?;
    let started = Instant::now();
    let answer = runtime.block_on(async { tokio::time::timeout(limit, ask(&socket)).await });
    match answer {
        Ok(Ok(())) => Ok(format!("the agent answers ({:.1?})", started.elapsed())),
        Ok(Err(why)) => Err(format!(
            "no agent at {}: {why}; start it (systemctl start slurm-serve-agent)",
            socket.display()
        )),
        Err(_) => Err(format!(
            "the agent at {} has not answered within {limit:?}; restart it (systemctl restart slurm-serve-agent), models go on",
            socket.display()
        )),
    }
}

async fn ask(socket: &Path) -> Result<(), String> {
    let channel = AgentChannel::unix(socket).map_err(|e| e.to_string())?;
    let answer = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await
        .map_err(|status| {
            let source = std::error::Error::source(&status);
            source.map_or_else(|| status.message().to_owned(), |cause| cause.to_string())
        })?;
    match answer.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other => Err(format!("it says that it is {}", other.as_str_name())),
    }
}
