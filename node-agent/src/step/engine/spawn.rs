//! Starting a process the way an engine needs it: own session, clean descriptors, one pipe for all that it prints.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::PipeReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::prctl;
use nix::sys::resource::{Resource, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::setsid;

use crate::limits;

/// Starts `argv`. Must be called on the thread that lives as long as the runner: the engine gets SIGTERM when it ends.
pub fn spawn(
    argv: &[String],
    environment: &BTreeMap<String, String>,
    folder: &Path,
) -> std::io::Result<(tokio::process::Child, PipeReader)> {
    let (program, arguments) = argv
        .split_first()
        .ok_or_else(|| std::io::Error::other("no program to start"))?;
    let (output, input) = std::io::pipe()?;
    let descriptors = limits::descriptors_before();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(environment)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input);
    // SAFETY: between fork and exec only system calls are made (setsid, prctl, sigaction, setrlimit); nothing allocates or locks.
    unsafe { command.pre_exec(move || in_child(descriptors)) };
    let child = tokio::process::Command::from(command).spawn()?;
    Ok((child, output))
}

fn in_child(descriptors: Option<(rlim_t, rlim_t)>) -> std::io::Result<()> {
    setsid()?;
    // A runner that is killed can't end its engine; where Slurm's cgroup doesn't either, this does.
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    // What a user's `sbatch --signal=` sends to all of his job means his own programs (proctrack/linuxproc signals the whole tree). An engine
    // that has a use for these signals sets its own handlers.
    for meant_for_others in [Signal::SIGUSR1, Signal::SIGUSR2] {
        // SAFETY: no handler is installed, the signal is ignored.
        unsafe { signal(meant_for_others, SigHandler::SigIgn)? };
    }
    if let Some((soft, hard)) = descriptors {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    Ok(())
}
