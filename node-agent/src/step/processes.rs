//! The engine's processes, as /proc shows them: its session, and whatever descends from the runner (which adopts orphans).

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// One line of /proc/PID/stat, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    parent: i32,
    session: i32,
    /// Dead, not reaped.
    pub zombie: bool,
}

/// The processes of the engine whose first process, and session, is `engine`. Zombies among them.
pub fn family(engine: i32) -> Vec<Process> {
    of_family(all(), engine, std::process::id() as i32)
}

/// Kills the family until nobody of it is left or `within` has passed; returns who is left. Reaps what the runner adopted,
/// all but the engine's first process, which its owner waits for.
pub async fn kill_family(engine: i32, within: Duration) -> Vec<i32> {
    let end = Instant::now() + within;
    loop {
        let (dead, alive): (Vec<_>, Vec<_>) = family(engine).into_iter().partition(|process| process.zombie);
        for process in &dead {
            reap(process.pid, engine);
        }
        if alive.is_empty() {
            return Vec::new();
        }
        if Instant::now() >= end {
            return alive.iter().map(|process| process.pid).collect();
        }
        for process in &alive {
            // Gone in between is what was wanted; anything else shows in the next round.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reaps adopted orphans that have died; never the engine's first process.
pub fn reap_orphans(engine: i32) {
    for process in family(engine).iter().filter(|process| process.zombie) {
        reap(process.pid, engine);
    }
}

/// Sends `signal` to one process; false if it is gone.
pub fn signal(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal) != Err(Errno::ESRCH)
}

fn reap(pid: i32, engine: i32) {
    if pid != engine {
        // ECHILD: somebody else's child, theirs to reap.
        let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
    }
}

fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// `PID (NAME) STATE PPID PGRP SESSION …`, where NAME may hold anything.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    let mut fields = rest[rest.rfind(')')? + 1..].split_ascii_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Process {
        pid: pid.parse().ok()?,
        parent,
        session,
        zombie,
    })
}

fn of_family(all: Vec<Process>, engine: i32, runner: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in &all {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut descendants = HashSet::new();
    let mut open = vec![runner];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if descendants.insert(*child) {
                open.push(*child);
            }
        }
    }
    all.into_iter()
        .filter(|process| process.pid != runner)
        .filter(|process| (process.session == engine && engine > 1) || descendants.contains(&process.pid))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_no_trouble() {
        let process = parse("12 (VLLM::Worker (0) x) Z 7 9 11 0 -1 4194560").expect("parsed");
        assert_eq!(
            process,
            Process {
                pid: 12,
                parent: 7,
                session: 11,
                zombie: true
            }
        );
        assert_eq!(parse("12 (x"), None);
    }

    #[test]
    fn session_and_descendants_are_family_and_nobody_else() {
        let process = |pid, parent, session| Process {
            pid,
            parent,
            session,
            zombie: false,
        };
        let all = vec![
            process(10, 1, 10),  // the runner
            process(11, 10, 11), // the engine
            process(12, 1, 11),  // its orphan, elsewhere adopted
            process(13, 11, 13), // ran off into a session of its own
            process(14, 13, 13),
            process(20, 1, 20),
        ];
        let pids: Vec<i32> = of_family(all, 11, 10).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [11, 12, 13, 14]);
    }
}
