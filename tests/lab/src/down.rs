//! Taking labs down: every process, mount, namespace, interface, cgroup and file, whoever started them.
//!
//! The first process of each node is the handle: with it the kernel ends all others of the node, and with the last
//! of them go mounts, interfaces and namespaces. Those first processes carry [`MARK`] in their environment, so that
//! they are found whether or not a state file names them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::cache::{progress, remove};
use crate::cgroup;
use crate::lab::END;
use crate::process::ProcessId;
use crate::running;
use crate::state::{LabState, base, folder, labs};
use crate::wait::wait_for;

/// The variable in each first process that holds its lab's state folder.
pub(crate) const MARK: &str = "SLURM_SERVE_LAB_FOLDER";

/// Takes a lab down; that there is nothing left of it is no error.
pub fn down(id: &str) -> Result<()> {
    down_with(id, || {})
}

/// As [`down`]; `reap` waits for children of this process once they have been killed.
pub(crate) fn down_with(id: &str, reap: impl FnOnce()) -> Result<()> {
    let folder = folder(id)?;
    cgroup::thaw(id);
    let inits: Vec<_> = marked()
        .into_iter()
        .filter(|(of, _)| *of == folder)
        .map(|(_, init)| init)
        .collect();
    for init in &inits {
        init.signal(Signal::SIGKILL)?;
    }
    reap();
    for init in inits {
        gone(init).with_context(|| format!("lab {id}"))?;
    }
    cgroup::remove(id)?;
    remove(&folder)?;
    // The base folder too, with the last lab. Another lab in it is no error.
    let _ = fs::remove_dir(base());
    Ok(())
}

/// Waits until a node whose first process was killed is gone.
///
/// A process that was started in it from outside stays in the process table until its parent, or the machine's init,
/// takes notice of its end; it holds nothing any more, and isn't waited for.
fn gone(init: ProcessId) -> Result<()> {
    wait_for(
        END,
        &format!("the end of all processes around {}", init.pid),
        || {
            if !init.is_alive() {
                return Ok(Some(()));
            }
            // An error means that it went between the two looks: the next one sees that.
            let others = running::with(init).unwrap_or_default();
            Ok((!others.is_empty() && others.iter().all(|running| running.state == 'Z')).then_some(()))
        },
    )
}

/// Takes down every lab that isn't to be kept and whose starter is gone.
pub fn down_orphans() -> Result<()> {
    for id in labs()? {
        // One that can't be read may be in the making: `lab down --all` takes those.
        if LabState::load(&id).is_ok_and(|state| state.is_orphan()) {
            progress(&format!("taking down the lab {id}: its starter is gone"));
            down(&id)?;
        }
    }
    Ok(())
}

/// Every lab there is anything of: a state folder or a process. For `lab down --all`.
pub fn all() -> Result<Vec<String>> {
    let mut ids: BTreeSet<_> = labs()?.into_iter().collect();
    let base = base();
    for (of, _) in marked() {
        if of.parent() == Some(&base)
            && let Some(id) = of.file_name()
        {
            ids.insert(id.to_string_lossy().into_owned());
        }
    }
    Ok(ids.into_iter().collect())
}

/// First processes of labs, each with its lab's state folder.
fn marked() -> Vec<(PathBuf, ProcessId)> {
    let mut found = Vec::new();
    let prefix = format!("{MARK}=");
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // Taken before the look at the environment: that look then was at this process.
        let Ok(process) = ProcessId::of(pid) else { continue };
        let Ok(environment) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        let value = environment
            .split(|byte| *byte == 0)
            .find_map(|pair| pair.strip_prefix(prefix.as_bytes()));
        let Some(value) = value else { continue };
        // A lab's first process is root's and the first of its PID namespace; anybody may set a variable.
        if is_first_and_roots(pid) && process.is_alive() {
            found.push((PathBuf::from(std::ffi::OsStr::from_bytes(value)), process));
        }
    }
    found
}

fn is_first_and_roots(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let inner = field("NSpid:").and_then(|pids| pids.split_ascii_whitespace().last());
    let uid = field("Uid:").and_then(|uids| uids.split_ascii_whitespace().next());
    inner == Some("1") && uid == Some("0")
}
