//! A listing of a machine that a lab must not change: finer than what a job may leave behind, down to pids, start
//! times and the bytes of /etc.

use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};
use serve_lab::{Node, ProcessId, Snapshot};

use crate::machine::TEST;

/// The first words of its lines.
pub const KINDS: [&str; 7] = [
    "cgroup", "file", "host", "listener", "mount", "network", "process",
];

/// What a Slurm at work writes by itself; of these the folder alone is listed.
const AT_WORK: [&str; 3] = ["/var/lib/slurm", "/var/log/munge", "/var/log/slurm"];

/// What an administrator sets at the top of the v1 hierarchies. What else is there are counters, or limits of
/// folders that are listed with their processes.
const TOP_SETTINGS: [&str; 4] = [
    "cgroup.clone_children",
    "memory.use_hierarchy",
    "notify_on_release",
    "release_agent",
];

/// Lists a node as a machine.
pub fn of(node: &Node) -> Result<Snapshot> {
    let mut lines = network(node)?;
    for line in node.snapshot()?.lines() {
        if let Some(path) = line.strip_prefix("cgroup   ") {
            lines.push(cgroup(path));
        } else if line.starts_with("listener") {
            lines.push(line.into());
        }
    }
    lines.extend(top_settings());
    let inside = node.inside(|| -> Result<Vec<String>> {
        let mut lines = mounts()?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").context("can't read the host name")?;
        lines.push(format!("host name {}", host.trim()));
        files(Path::new("/"), &mut lines)?;
        processes(&mut lines)?;
        Ok(lines)
    })?;
    lines.extend(inside.with_context(|| format!("can't list {}", node.name()))?);
    Ok(lines.into_iter().collect())
}

/// Interfaces, addresses, routes and rules.
fn network(node: &Node) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for words in [
        "link",
        "addr",
        "rule",
        "route show table all",
        "-6 route show table all",
    ] {
        let argv = ["ip", "-o"].into_iter().chain(words.split(' '));
        let said = node.command("root", argv).run()?;
        // An address is tentative for its first second or two.
        lines.extend(
            said.lines()
                .map(|line| format!("network {}", line.replace(" tentative", ""))),
        );
    }
    Ok(lines)
}

/// A cgroup in use: who is in it, and the limits that matter to a job.
fn cgroup(path: &str) -> String {
    let folder = Path::new("/sys/fs/cgroup").join(path);
    let shown = [
        "cgroup.procs",
        "devices.list",
        "memory.limit_in_bytes",
        "memory.max",
        "freezer.state",
    ]
    .iter()
    .filter_map(|name| {
        Some(format!(
            " {name}={:?}",
            fs::read_to_string(folder.join(name)).ok()?.trim()
        ))
    });
    format!("cgroup {path}{}", shown.collect::<String>())
}

fn top_settings() -> Vec<String> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let settings = hierarchies.flat_map(|hierarchy| TOP_SETTINGS.map(|name| hierarchy.path().join(name)));
    settings
        .filter_map(|path| {
            let value = fs::read_to_string(&path).ok()?;
            Some(format!("cgroup {} = {:?}", path.display(), value.trim()))
        })
        .collect()
}

fn mounts() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/1/mountinfo").context("can't read the mounts")?;
    Ok(text.lines().map(|line| format!("mount {line}")).collect())
}

/// Everything in the process table with pid and start time, also what runs in PID namespaces further down.
fn processes(lines: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir("/proc").context("can't read /proc")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(pid) = name.parse::<i32>() else { continue };
        // One that ends while we look isn't there.
        let (Ok(process), Ok(owner), Ok(command)) = (
            ProcessId::of(pid),
            fs::metadata(&path),
            fs::read(path.join("cmdline")),
        ) else {
            continue;
        };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        lines.push(format!(
            "process {pid} since {} uid {} {}",
            process.started,
            owner.uid(),
            command.trim()
        ));
    }
    Ok(())
}

/// Every file below a folder, of /etc also what is in it.
fn files(folder: &Path, lines: &mut Vec<String>) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        // It went while we looked, as a job's file does.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| format!("can't read {}", folder.display()))?,
    };
    for entry in entries {
        let path = entry?.path();
        if [Path::new("/proc"), Path::new("/sys"), Path::new(TEST)].contains(&path.as_path()) {
            continue;
        }
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        lines.push(file(&path, &metadata)?);
        if metadata.is_dir() && !AT_WORK.iter().any(|folder| path == Path::new(folder)) {
            files(&path, lines)?;
        }
    }
    Ok(())
}

fn file(path: &Path, metadata: &Metadata) -> Result<String> {
    let mut line = format!(
        "file {} mode {:o} owner {}:{}",
        path.display(),
        metadata.mode(),
        metadata.uid(),
        metadata.gid()
    );
    let kind = metadata.file_type();
    if kind.is_file() {
        // Of other kinds the time changes with use, of folders with what comes and goes in them.
        line += &format!(
            " size {} time {}.{:09}",
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec()
        );
        if path.starts_with("/etc") {
            let bytes = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            line += &format!(" hash {:016x}", hasher.finish());
        }
    } else if kind.is_symlink() {
        line += &format!(" to {}", fs::read_link(path).unwrap_or_default().display());
    } else if kind.is_char_device() || kind.is_block_device() {
        line += &format!(" device {:x}", metadata.rdev());
    }
    Ok(line)
}
