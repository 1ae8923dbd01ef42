//! What runs in a node, as the machine's /proc shows it.

use std::fs;

use anyhow::{Context, Result};

use crate::process::ProcessId;

/// A process of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// As the machine numbers it.
    pub process: ProcessId,
    /// Its real uid.
    pub uid: u32,
    /// `R`, `S`, `T`, `Z` …: proc(5).
    pub state: char,
    /// The kernel's name of it, at most 15 characters.
    pub name: String,
    /// Its command line, words joined by blanks; empty for a zombie.
    pub command: String,
}

/// Every process in the PID namespace of `init`, without that one itself.
///
/// Works for as long as `init` isn't reaped, even if it has been killed.
pub(crate) fn with(init: ProcessId) -> Result<Vec<Running>> {
    let space = fs::read_link(format!("/proc/{}/ns/pid", init.pid))
        .with_context(|| format!("process {} is gone, and its namespaces with it", init.pid))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("can't read /proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let same = fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == space);
        // One that ends while we look isn't there.
        if same
            && pid != init.pid
            && let Some(running) = look(pid)
        {
            found.push(running);
        }
    }
    Ok(found)
}

fn look(pid: i32) -> Option<Running> {
    let process = ProcessId::of(pid).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let words: Vec<_> = command
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    Some(Running {
        process,
        uid: field("Uid:")?.split_ascii_whitespace().next()?.parse().ok()?,
        state: field("State:")?.chars().next()?,
        name: field("Name:")?.to_owned(),
        command: words.join(" ").trim().to_owned(),
    })
}
