//! Processes by pid *and* start time, so that a pid that was used again is never taken for the old one.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// A process that is meant, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its pid.
    pub pid: i32,
    /// Clock ticks since boot when it started (proc_pid_stat(5), field 22).
    pub start: u64,
}

impl Known {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
        Some(Self {
            pid,
            start: stat.starttime,
        })
    }

    /// Is it still there? A zombie is not.
    pub fn is_alive(self) -> bool {
        let stat = procfs::process::Process::new(self.pid).and_then(|process| process.stat());
        stat.is_ok_and(|stat| stat.starttime == self.start && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Is it there, and suspended: stopped by a signal, or with its cgroup frozen? Slurm does the one or the other, by its proctrack plugin.
    pub fn is_suspended(self) -> bool {
        let Ok(process) = procfs::process::Process::new(self.pid) else {
            return false;
        };
        let stopped = match process.stat() {
            Ok(stat) if stat.starttime == self.start => stat.state == 'T',
            _ => return false,
        };
        let frozen = |group: &procfs::ProcessCGroup| is_frozen(Path::new("/sys/fs/cgroup"), group);
        stopped || process.cgroups().is_ok_and(|groups| groups.0.iter().any(frozen))
    }

    /// Waits until it is gone. False: it still is there after `limit`.
    pub async fn gone(self, limit: Duration) -> bool {
        let gone = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(limit, gone).await.is_ok()
    }

    /// Kills its process group, if it leads one.
    pub fn kill_group(self, signal: Signal) {
        if self.is_alive() {
            let _ = killpg(Pid::from_raw(self.pid), signal);
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// Ends a process group by SIGTERM, and by SIGKILL if its leader is still there after `grace`. Returns at once. `child` is the leader if it is a
/// child of ours: it is reaped, also if it had ended before anybody waited for it.
pub fn end_group(child: Option<Child>, leader: Option<Known>, grace: Duration) {
    let Some(leader) = leader.filter(|leader| leader.is_alive()) else {
        // A child that has ended is reaped when it is dropped.
        return drop(child);
    };
    leader.kill_group(Signal::SIGTERM);
    tokio::spawn(async move {
        let gone = match child {
            Some(mut child) => tokio::time::timeout(grace, child.wait()).await.is_ok(),
            None => leader.gone(grace).await,
        };
        if !gone {
            leader.kill_group(Signal::SIGKILL);
        }
    });
}

/// Is this cgroup frozen, itself or by one above it? `root` is where cgroups are mounted.
fn is_frozen(root: &Path, group: &procfs::ProcessCGroup) -> bool {
    let path = group.pathname.trim_start_matches('/');
    let read = |folder: &str, file: &str| {
        std::fs::read_to_string(root.join(folder).join(path).join(file)).unwrap_or_default()
    };
    match group.hierarchy {
        // Version 2: the mount itself, or `unified` beside those of version 1.
        0 => ["", "unified"].iter().any(|folder| {
            read(folder, "cgroup.events")
                .lines()
                .any(|line| line == "frozen 1")
        }),
        _ if group.controllers.iter().any(|name| name == "freezer") => {
            read("freezer", "freezer.state").trim() == "FROZEN"
        }
        _ => false,
    }
}

/// Is there, among the ancestors of `pid`, a process of root whose title begins with `slurmstepd: [JOB.`? Slurm writes that title itself;
/// a user can write it too, but not own it as root.
pub fn is_in_job(pid: i32, job_id: u32) -> bool {
    let title = format!("slurmstepd: [{job_id}.");
    let mut at = pid;
    // The depth is bounded: a tree of processes can be changed while it is walked.
    for _ in 0..64 {
        let Ok(process) = procfs::process::Process::new(at) else {
            return false;
        };
        let Ok(stat) = process.stat() else { return false };
        let is_step = process
            .cmdline()
            .is_ok_and(|words| words.join(" ").starts_with(&title));
        if is_step && process.uid().is_ok_and(|uid| uid == 0) {
            return true;
        }
        if stat.ppid <= 1 {
            return false;
        }
        at = stat.ppid;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_alive_and_nobody_of_another_time_is() {
        let me = Known::of(std::process::id() as i32).unwrap();
        assert!(me.is_alive());
        assert!(
            !Known {
                start: me.start + 1,
                ..me
            }
            .is_alive()
        );
    }

    fn state(known: Known) -> Option<char> {
        let stat = procfs::process::Process::new(known.pid).and_then(|process| process.stat());
        stat.ok().map(|stat| stat.state)
    }

    async fn until(known: Known, wanted: Option<char>) {
        let seen = async {
            while state(known) != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(20), seen).await;
        seen.unwrap_or_else(|_| panic!("is {:?}, not {wanted:?}", state(known)));
    }

    #[tokio::test]
    async fn a_child_that_is_to_end_leaves_no_zombie_whenever_it_ends() {
        let start = |script| {
            let mut command = tokio::process::Command::new("sh");
            let child = command.args(["-c", script]).process_group(0).spawn().unwrap();
            let known = Known::of(child.id().unwrap() as i32).unwrap();
            (child, known)
        };
        let (ended, known) = start("true");
        until(known, Some('Z')).await;
        end_group(Some(ended), Some(known), Duration::from_secs(20));
        until(known, None).await;

        let (willing, known) = start("sleep 60");
        end_group(Some(willing), Some(known), Duration::from_secs(20));
        until(known, None).await;

        let (stubborn, known) = start("trap '' TERM; while :; do sleep 1; done");
        end_group(Some(stubborn), Some(known), Duration::from_millis(50));
        until(known, None).await;
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let known = Known::of(child.id() as i32).unwrap();
        assert!(!known.is_suspended());
        kill(Pid::from_raw(known.pid), Signal::SIGSTOP).unwrap();
        // The signal is on its way until the kernel has taken the process off its processor.
        while !known.is_suspended() {
            std::thread::yield_now();
        }
        assert!(known.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_frozen_cgroup_is_told_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        let group = |hierarchy, controllers: &[&str]| procfs::ProcessCGroup {
            hierarchy,
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
            pathname: "/slurm/job_7".into(),
        };
        let (v1, v2, other) = (group(5, &["freezer"]), group(0, &[]), group(6, &["memory"]));
        let write = |folder: &str, file: &str, text: &str| {
            let folder = root.path().join(folder).join("slurm/job_7");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(file), text).unwrap();
        };
        assert!(!is_frozen(root.path(), &v1) && !is_frozen(root.path(), &v2));
        write("freezer", "freezer.state", "THAWED\n");
        write("", "cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!is_frozen(root.path(), &v1) && !is_frozen(root.path(), &v2));
        write("freezer", "freezer.state", "FROZEN\n");
        write("", "cgroup.events", "populated 1\nfrozen 1\n");
        assert!(is_frozen(root.path(), &v1) && is_frozen(root.path(), &v2));
        assert!(!is_frozen(root.path(), &other));
    }

    #[test]
    fn a_test_is_in_no_job() {
        assert!(!is_in_job(std::process::id() as i32, 7));
    }
}
