//! The srun client that starts a model's step: run as the job's user, outside the job, and therefore boxed (`confine`).
//!
//! Order of the privilege steps: supplementary groups are looked up (as root, before the fork), then in the child a session of its own,
//! limits, its cgroup, groups, gid, uid, and exec; in a scope systemd-run takes the last ones. The environment is fixed; the user's goes to the runner in its order, never to srun.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setsid, setuid};
use tokio::process::Child;

use super::confine::{Confine, Held};
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
    /// What holds it.
    pub confine: &'a Confine,
}

/// Why the client did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The groups of the user are not to be had.
    #[error("groups of {0}: {1}; does identity resolve on this node?")]
    Groups(String, nix::Error),
    /// It cannot be held.
    #[error("srun cannot be confined: {0}; see agent.srun_box")]
    Confine(String),
    /// There is no memory for what it says.
    #[error("a memfd for srun's words cannot be made: {0}")]
    Words(io::Error),
    /// srun cannot be run.
    #[error("srun cannot be run as {0}: {1}; set agent.slurm_bin_dir")]
    Spawn(String, io::Error),
}

/// What the client writes on stdout and stderr.
///
/// It is the user's process, who can take its descriptors (pidfd_getfd(2)) and write without end: a file on the agent's tmpfs would fill
/// /run for the whole node. This is memory of a fixed size.
#[derive(Debug)]
pub struct Words(File);

/// What fits. srun says a line or two.
const WORDS: u16 = 16 * 1024;

/// A client that was started.
#[derive(Debug)]
pub struct Started {
    /// Ours to reap.
    pub child: Child,
    /// The same.
    pub known: Known,
    /// What it says.
    pub words: Words,
    /// What holds it.
    pub confined: Option<Held>,
}

/// Starts the client.
pub fn start(step: &StepStart<'_>) -> Result<Started, StartError> {
    let user = step.user;
    let name = CString::new(user.name.clone()).unwrap_or_default();
    let groups = getgrouplist(&name, user.gid).map_err(|e| StartError::Groups(user.name.clone(), e))?;
    let words = Words::new().map_err(StartError::Words)?;
    let mut place = step
        .confine
        .begin(step.generation, user)
        .map_err(StartError::Confine)?;

    let (mut command, becomes_user) = place.command(step.srun.as_os_str());
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
    let copy = || words.0.try_clone().map_err(StartError::Words);
    command
        .stdin(Stdio::null())
        .stdout(copy()?)
        .stderr(copy()?)
        .current_dir("/");

    let (uid, gid, doors) = (user.uid, user.gid, place.take_doors());
    // SAFETY: between fork and exec the closure makes system calls only (setsid, setrlimit, write, setgroups, setgid, setuid), which are
    // async-signal-safe; groups and open files were made before the fork and are only read; no allocation happens on the successful path.
    unsafe {
        command.pre_exec(move || {
            limit()?;
            doors.enter()?;
            match becomes_user {
                // systemd-run changes uid and gid alone; the groups that it leaves would be root's.
                true => set_groups(uid, &groups),
                false => drop_privileges(uid, gid, &groups),
            }
            .map_err(io::Error::from)
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            if let Some(held) = place.held {
                tokio::spawn(held.end(None, Duration::ZERO));
            }
            return Err(StartError::Spawn(user.name.clone(), e));
        }
    };
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .unwrap_or_default();
    let known = Known::of(pid).unwrap_or(Known { pid, start: 0 });
    Ok(Started {
        child,
        known,
        words,
        confined: place.held,
    })
}

fn limit() -> nix::Result<()> {
    setsid()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 20, 1 << 20)?;
    setrlimit(Resource::RLIMIT_NOFILE, 1024, 1024)
}

/// Tests run without root and as themselves.
fn set_groups(uid: Uid, groups: &[Gid]) -> nix::Result<()> {
    match Uid::effective() == uid {
        true => Ok(()),
        false => setgroups(groups),
    }
}

fn drop_privileges(uid: Uid, gid: Gid, groups: &[Gid]) -> nix::Result<()> {
    set_groups(uid, groups)?;
    if Uid::effective() != uid {
        setgid(gid)?;
        setuid(uid)?;
    }
    Ok(())
}

impl Words {
    fn new() -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        // Where vm.memfd_noexec demands it; kernels before 6.3 do not know it.
        let no_exec = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
        let name = c"slurm-serve srun";
        let file: File = memfd_create(name, flags | no_exec)
            .or_else(|_| memfd_create(name, flags))?
            .into();
        file.set_len(WORDS.into())?;
        let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(file))
    }

    /// What the client said last, as one line.
    pub fn last(&self) -> String {
        let mut bytes = vec![0; WORDS.into()];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        last_words(&bytes[..read])
    }
}

/// The last two lines of what stands before the first NUL.
fn last_words(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[end.saturating_sub(2048)..end]);
    let text = text.replace(|c: char| c.is_control() && c != '\n', " ");
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
        // A slurmctld 22.05 that has just started says this of a job whose node has not reported yet.
        "Memory required by task is not available",
        "temporarily",
        // systemd-run, while systemd itself is being restarted.
        "Failed to start transient scope unit",
        "Failed to connect to bus",
    ]
    .iter()
    .any(|known| words.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_one_line() {
        let said = b"srun: error: Unable to confirm allocation for job 5: Job is pending execution\nsrun: Check SLURM_JOB_ID\n\0\0";
        let words = last_words(said);
        assert_eq!(
            words,
            "Unable to confirm allocation for job 5: Job is pending execution; Check SLURM_JOB_ID"
        );
        assert!(is_passing(&words));
        assert!(!is_passing("Invalid job id specified"));
        assert_eq!(last_words(b"\0"), "srun said nothing");
        assert_eq!(last_words(b"a\x1b[2Jb\n"), "a [2Jb");
    }

    #[test]
    fn who_takes_its_descriptor_cannot_fill_the_memory() {
        use std::io::Write;

        let words = Words::new().unwrap();
        let mut taken = words.0.try_clone().unwrap();
        taken.write_all(b"srun: hello\n").unwrap();
        assert_eq!(words.last(), "hello");
        assert!(taken.write_all(&vec![b'x'; 1 << 20]).is_err());
        assert!(taken.set_len(1 << 20).is_err());
        assert_eq!(taken.metadata().unwrap().len(), u64::from(WORDS));
    }
}
