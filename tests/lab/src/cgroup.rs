//! What Slurm leaves in the machine's cgroups for the nodes of a lab.
//!
//! Slurm as Debian builds it (`--enable-multiple-slurmd`) names its own folder by node: `slurm_NODE` in each v1
//! hierarchy, `system.slice/NODE_slurmstepd.scope` in v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::wait::wait_for;

const TOP: &str = "/sys/fs/cgroup";

/// Which cgroups this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    /// v2 if the top folder itself is a v2 hierarchy (`cgroup.controllers`, cgroups(7)).
    pub(crate) fn of_this_machine() -> Self {
        if Path::new(TOP).join("cgroup.controllers").exists() {
            Self::V2
        } else {
            Self::V1
        }
    }
}

/// Slurm's cgroup folders whose node name begins with `prefix`.
fn of_nodes(prefix: &str) -> Vec<PathBuf> {
    let top = Path::new(TOP);
    let mut found = Vec::new();
    let children = |folder: &Path| {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let hierarchies = [top.to_path_buf(), top.join("system.slice")]
        .into_iter()
        .chain(children(top));
    for path in hierarchies.flat_map(|hierarchy| children(&hierarchy).collect::<Vec<_>>()) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.strip_prefix("slurm_").unwrap_or(&name).starts_with(prefix) && name.contains("slurm") {
            found.push(path);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The folders below Slurm's for one node that hold processes, relative to the top of the hierarchies: its jobs' and
/// steps'.
///
/// Empty ones are left out: with v1, Slurm gives up on removing one that is busy at that moment, and then keeps it
/// for good (seen with the extern step's in `freezer` in three of two hundred jobs on a loaded machine).
pub(crate) fn in_use(node: &str) -> Vec<String> {
    let mut found = Vec::new();
    for top in of_nodes(node) {
        // `n1` begins `n10` too.
        let name = top.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_slurms = name == format!("slurm_{node}") || name == format!("{node}_slurmstepd.scope");
        if is_slurms || name == format!("{node}_slurm-serve") {
            collect(&top, &mut found);
        }
    }
    // One that vanishes while we look is in nobody's use.
    found.retain(|folder| fs::read_to_string(folder.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty()));
    let relative = |path: &PathBuf| path.strip_prefix(TOP).unwrap_or(path).display().to_string();
    found.iter().map(relative).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // A cgroup may vanish while we look: then there is nothing to list.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
            collect(&entry.path(), found);
        }
    }
}

/// Lets frozen jobs of a lab run again: a frozen v1 cgroup holds its processes even against SIGKILL.
pub(crate) fn thaw(id: &str) {
    thaw_node(&format!("{id}-"));
}

/// The same of the nodes whose names begin so.
pub(crate) fn thaw_node(prefix: &str) {
    for top in of_nodes(prefix) {
        let mut folders = vec![top.clone()];
        collect(&top, &mut folders);
        for folder in folders {
            let state = folder.join("freezer.state");
            if fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED") {
                // If it fails the wait for the processes' end says so.
                let _ = fs::write(&state, "THAWED");
            }
        }
    }
}

/// Removes all of a lab's cgroups, whose processes have been killed.
pub(crate) fn remove(id: &str) -> Result<()> {
    remove_node(&format!("{id}-"))
}

/// The same of the nodes whose names begin so.
pub(crate) fn remove_node(prefix: &str) -> Result<()> {
    let mut left = String::new();
    wait_for(Duration::from_secs(10), "the lab's cgroups to be empty", || {
        let tops = of_nodes(prefix);
        for top in &tops {
            let mut folders = vec![top.clone()];
            collect(top, &mut folders);
            // Deepest first.
            for folder in folders.iter().rev() {
                if let Err(error) = fs::remove_dir(folder)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    left = format!("{}: {error}", folder.display());
                }
            }
        }
        Ok(of_nodes(prefix).is_empty().then_some(()))
    })
    .with_context(|| format!("a cgroup stays: {left}"))
}
