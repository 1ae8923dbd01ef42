//! The srun client that starts a model's step: run as the job's user, outside the job, and therefore boxed.
//!
//! Order of the privilege steps: supplementary groups are looked up (as root, before the fork), then in the child a session of its own,
//! limits, groups, gid, uid, and exec. The environment is fixed; the user's goes to the runner in its order, never to srun.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setsid, setuid};
use tokio::process::{Child, Command};

use super::process::Known;

/// Everything the step needs to know before it can ask.
#[derive(Debug)]
pub struct StepStart<'a> {
    /// srun, by full path or name.
    pub srun: &'a Path,
    /// The job.
    pub job_id: u32,
    /// Of a heterogeneous job: which component of it.
    pub component: Option<u32>,
    /// Slurm's name of this node.
    pub node: &'a str,
    /// The job's owner.
    pub user: &'a User,
    /// This program, which becomes the step's one task.
    pub program: &'a Path,
    /// The agent's socket.
    pub socket: &'a Path,
    /// Of the launch.
    pub generation: &'a str,
    /// Shown once by the runner.
    pub nonce: &'a str,
    /// Where the client's own words go; made anew, readable by root alone.
    pub log: &'a Path,
}

/// Why the client did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The groups of the user are not to be had.
    #[error("groups of {0}: {1}; does identity resolve on this node?")]
    Groups(String, nix::Error),
    /// The log cannot be made.
    #[error("{0}: {1}")]
    Log(String, std::io::Error),
    /// srun cannot be run.
    #[error("srun cannot be run as {0}: {1}; set agent.slurm_bin_dir")]
    Spawn(String, std::io::Error),
}

/// Starts the client.
pub fn start(step: &StepStart<'_>) -> Result<(Child, Known), StartError> {
    let user = step.user;
    let name = CString::new(user.name.clone()).unwrap_or_default();
    let groups = getgrouplist(&name, user.gid).map_err(|e| StartError::Groups(user.name.clone(), e))?;
    let log = create_log(step.log).map_err(|e| StartError::Log(step.log.display().to_string(), e))?;

    let mut command = Command::new(step.srun);
    command
        .arg(format!("--jobid={}", step.job_id))
        .args(["--overlap", "-N1", "-n1"])
        .args(["-w", step.node])
        .args(step.component.map(|component| format!("--het-group={component}")))
        // The runner binds nothing; the engine shall see all the job's CPUs.
        .arg("--cpu-bind=none")
        // The limits of this client's box are not for the step.
        .arg("--propagate=NONE")
        .args(["--mpi=none", "--chdir=/", "--job-name=serve", "--output=none"])
        .arg(step.program)
        .arg("step");
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LANG", "C.UTF-8");
    command
        .env("HOME", &user.dir)
        .env("USER", &user.name)
        .env("LOGNAME", &user.name)
        .env("SHELL", &user.shell);
    if let Some(conf) = std::env::var_os("SLURM_CONF") {
        command.env("SLURM_CONF", conf);
    }
    command.env("SLURM_SERVE_SOCKET", step.socket);
    command
        .env("SLURM_SERVE_GENERATION", step.generation)
        .env("SLURM_SERVE_NONCE", step.nonce);
    let errors = log
        .try_clone()
        .map_err(|e| StartError::Log(step.log.display().to_string(), e))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(errors))
        .current_dir("/");

    let (uid, gid) = (user.uid, user.gid);
    // SAFETY: between fork and exec the closure makes system calls only (setsid, setrlimit, setgroups, setgid, setuid), which are
    // async-signal-safe; the group list was made before the fork and is only read; no allocation happens on the successful path.
    unsafe {
        command.pre_exec(move || drop_privileges(uid, gid, &groups).map_err(std::io::Error::from));
    }
    let child = command
        .spawn()
        .map_err(|e| StartError::Spawn(user.name.clone(), e))?;
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .unwrap_or_default();
    let known = Known::of(pid).unwrap_or(Known { pid, start: 0 });
    Ok((child, known))
}

fn drop_privileges(uid: Uid, gid: Gid, groups: &[Gid]) -> nix::Result<()> {
    setsid()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 20, 1 << 20)?;
    setrlimit(Resource::RLIMIT_NOFILE, 1024, 1024)?;
    // Tests run without root and as themselves.
    if Uid::effective() != uid {
        setgroups(groups)?;
        setgid(gid)?;
        setuid(uid)?;
    }
    Ok(())
}

fn create_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// What the client said last, as one line.
pub fn last_words(log: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(log) {
        let length = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(2048)));
        let mut bytes = Vec::new();
        let _ = file.take(2048).read_to_end(&mut bytes);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let lines = text.lines().map(|line| {
        line.trim_start_matches("srun: ")
            .trim_start_matches("error: ")
            .trim()
    });
    let kept: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    match kept.as_slice() {
        [] => "srun said nothing".into(),
        [.., before, last] => format!("{before}; {last}"),
        [only] => (*only).to_owned(),
    }
}

/// Is what srun said a reason that passes by itself?
pub fn is_passing(words: &str) -> bool {
    [
        "pending execution",
        "Unable to confirm allocation",
        "Socket timed out",
        "Unable to contact slurm controller",
        "temporarily",
    ]
    .iter()
    .any(|known| words.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, "srun: error: Unable to confirm allocation for job 5: Job is pending execution\nsrun: Check SLURM_JOB_ID\n").unwrap();
        let words = last_words(&log);
        assert_eq!(
            words,
            "Unable to confirm allocation for job 5: Job is pending execution; Check SLURM_JOB_ID"
        );
        assert!(is_passing(&words));
        assert!(!is_passing("Invalid job id specified"));
        assert_eq!(last_words(&folder.path().join("none")), "srun said nothing");
    }
}
