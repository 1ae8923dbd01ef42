//! Processes named so that a reused pid is never mistaken for them, and the way into their namespaces.

use std::fs::{self, File};
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::wait::wait_for;

/// A process of this machine: its pid together with when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// As the machine numbers it (not as its own PID namespace does).
    pub pid: i32,
    /// Clock ticks between boot and its start: field 22 of /proc/PID/stat, proc(5).
    pub started: u64,
}

/// Which namespaces a thread joins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// All but PID: code may run there, make threads, open files and sockets.
    Here,
    /// PID too: children are born in the node. A thread that did this can't make threads any more (clone(2)).
    Children,
}

impl ProcessId {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> io::Result<Self> {
        let (started, _) = stat(pid)?;
        Ok(Self { pid, started })
    }

    /// This very process.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id() as i32)
    }

    /// Whether it still runs. A zombie doesn't.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_ok_and(|(started, state)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Whether its pid is still taken by it, be it as a zombie.
    pub fn exists(self) -> bool {
        stat(self.pid).is_ok_and(|(started, _)| started == self.started)
    }

    /// Sends a signal; that it is gone already is no error.
    pub fn signal(self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("can't send {signal} to process {}", self.pid)),
        }
    }

    /// Waits until it no longer runs.
    pub fn wait_gone(self, limit: Duration) -> Result<()> {
        wait_for(limit, &format!("the end of process {}", self.pid), || {
            Ok((!self.is_alive()).then_some(()))
        })
    }

    /// Runs `body` on a thread of its own inside this process's namespaces, where `/` and the network are the node's.
    ///
    /// A panic in the body goes on in the caller, so assertions work inside.
    pub(crate) fn inside<T: Send>(self, join: Join, body: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.join(join)?;
                Ok(body())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Puts the calling thread into this process's namespaces. There is no way back: the thread must end with it.
    fn join(self, join: Join) -> Result<()> {
        let mut wanted = vec![
            ("net", CloneFlags::CLONE_NEWNET),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("ipc", CloneFlags::CLONE_NEWIPC),
        ];
        if join == Join::Children {
            wanted.push(("pid", CloneFlags::CLONE_NEWPID));
        }
        // The mount namespace comes last: /proc is another one from there on.
        wanted.push(("mnt", CloneFlags::CLONE_NEWNS));
        let gone = || format!("process {} is gone, and its namespaces with it", self.pid);
        let opened = wanted
            .into_iter()
            .map(|(name, flag)| Ok((File::open(format!("/proc/{}/ns/{name}", self.pid))?, flag)))
            .collect::<io::Result<Vec<_>>>()
            .with_context(gone)?;
        // Looked at after the opening: what was opened belonged to this process and no later one of that pid.
        if !self.is_alive() {
            bail!(gone());
        }
        // A thread that shares its root folder with others may not change its mount namespace (setns(2)).
        unshare(CloneFlags::CLONE_FS).context("can't unshare the thread's root folder")?;
        for (file, flag) in opened {
            setns(&file, flag).with_context(|| format!("can't enter a namespace ({flag:?})"))?;
        }
        Ok(())
    }
}

/// When a process started and its state letter.
fn stat(pid: i32) -> io::Result<(u64, char)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "can't read /proc/PID/stat"))
}

fn parse_stat(text: &str) -> Option<(u64, char)> {
    // The name, in brackets, may hold blanks and brackets itself: what follows the last one is regular.
    let mut rest = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = rest.next()?.chars().next()?;
    let started = rest.nth(18)?.parse().ok()?;
    Some((started, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_stat_line_with_a_wild_name() {
        let line = "77 (a) b (c)) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9";
        assert_eq!(parse_stat(line), Some((4711, 'S')));
        assert_eq!(parse_stat("rubbish"), None);
    }

    #[test]
    fn knows_itself_and_not_an_earlier_one() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        assert!(
            !ProcessId {
                started: own.started + 1,
                ..own
            }
            .is_alive()
        );
    }
}
