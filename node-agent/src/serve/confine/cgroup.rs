//! A cgroup for each client, where no systemd manages them: `NODE_slurm-serve/NAME` at the top of the one hierarchy of version 2, or of each of
//! version 1 that can hold it. The folder for the node is made with the first client and goes with the last.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{CPU_PERCENT, MEMORY, TASKS};

/// Where cgroups are mounted.
pub const TOP: &str = "/sys/fs/cgroup";
/// Microseconds.
const PERIOD: u32 = 100_000;
/// How long killed processes may take to be gone. They hold no device and wait for no disk, so this is long.
const LIMIT: Duration = Duration::from_secs(10);

/// The cgroups of this node's clients.
#[derive(Debug)]
pub struct Cgroups {
    /// The node's folder in each hierarchy.
    tops: Vec<PathBuf>,
    version: u8,
}

impl Cgroups {
    /// Makes one once, to know.
    pub fn open(root: &Path, node: &str) -> Result<Self, String> {
        if node.contains('/') {
            return Err(format!("{node:?} is no name for a folder"));
        }
        let top = format!("{node}_slurm-serve");
        let (version, hierarchies) = match root.join("cgroup.controllers").exists() {
            true => (2, vec![root.to_path_buf()]),
            false => (1, version_1(root)?),
        };
        let tops = hierarchies.into_iter().map(|folder| folder.join(&top)).collect();
        let cgroups = Self { tops, version };
        let (folders, _) = cgroups.make("try")?;
        end(&folders);
        Ok(cgroups)
    }

    /// `version 2`, or `version 1: memory, pids`.
    pub fn shown(&self) -> String {
        let names = self.tops.iter().filter_map(|top| top.parent()?.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        match self.version {
            2 => "version 2".into(),
            _ => format!("version 1: {}", names.join(", ")),
        }
    }

    /// The folders of a new one, and the open files through which a process enters.
    pub fn make(&self, name: &str) -> Result<(Vec<PathBuf>, Vec<File>), String> {
        let folders: Vec<PathBuf> = self.tops.iter().map(|top| top.join(name)).collect();
        match self.fill(&folders) {
            Ok(doors) => Ok((folders, doors)),
            Err(why) => {
                end(&folders);
                Err(why)
            }
        }
    }

    fn fill(&self, folders: &[PathBuf]) -> Result<Vec<File>, String> {
        let mut doors = Vec::new();
        for folder in folders {
            let said = |e: io::Error| format!("{}: {e}", folder.display());
            create(folder).map_err(said)?;
            match self.version {
                2 => set_version_2(folder)?,
                _ => set_version_1(folder)?,
            }
            let door = File::options().write(true).open(folder.join("cgroup.procs"));
            doors.push(door.map_err(said)?);
        }
        Ok(doors)
    }

    /// Folders that are there and not among `known`.
    pub fn strangers(&self, known: &[&PathBuf]) -> Vec<PathBuf> {
        let inside = self.tops.iter().filter_map(|top| fs::read_dir(top).ok());
        inside
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .filter(|path| !known.contains(&path))
            .collect()
    }
}

/// Without a limit on memory and on tasks it would hold nothing.
fn version_1(root: &Path) -> Result<Vec<PathBuf>, String> {
    let is_there = |name: &&str| root.join(name).join("cgroup.procs").exists();
    for needed in ["memory", "pids"] {
        if !is_there(&needed) {
            return Err(format!("no {needed} below {}", root.display()));
        }
    }
    let used = ["memory", "pids", "cpu", "devices"].into_iter().filter(is_there);
    Ok(used.map(|name| root.join(name)).collect())
}

/// The folder above may be removed, being empty, between its making and that of the one below.
fn create(folder: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::create_dir_all(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && tries < 10 => tries += 1,
            done => return done,
        }
    }
}

fn write(folder: &Path, file: &str, value: &str) -> Result<(), String> {
    let path = folder.join(file);
    fs::write(&path, value).map_err(|e| format!("{} = {value}: {e}", path.display()))
}

fn set_version_1(folder: &Path) -> Result<(), String> {
    match folder
        .components()
        .rev()
        .nth(2)
        .map(|part| part.as_os_str().to_string_lossy())
        .as_deref()
    {
        Some("memory") => write(folder, "memory.limit_in_bytes", &MEMORY.to_string()),
        Some("pids") => write(folder, "pids.max", &TASKS.to_string()),
        Some("cpu") => {
            write(folder, "cpu.cfs_period_us", &PERIOD.to_string())?;
            write(
                folder,
                "cpu.cfs_quota_us",
                &(PERIOD / 100 * CPU_PERCENT).to_string(),
            )
        }
        Some("devices") => {
            write(folder, "devices.deny", "a")?;
            // null, zero, full, random, urandom (devices(4)).
            [3, 5, 7, 8, 9]
                .into_iter()
                .try_for_each(|minor| write(folder, "devices.allow", &format!("c 1:{minor} rw")))
        }
        _ => Ok(()),
    }
}

fn set_version_2(folder: &Path) -> Result<(), String> {
    let Some(top) = folder.parent() else { return Ok(()) };
    for above in [top.parent(), Some(top)].into_iter().flatten() {
        write(above, "cgroup.subtree_control", "+memory +pids +cpu")?;
    }
    write(folder, "memory.max", &MEMORY.to_string())?;
    // Without swap accounting there is no such file.
    let _ = write(folder, "memory.swap.max", "0");
    write(folder, "pids.max", &TASKS.to_string())?;
    write(
        folder,
        "cpu.max",
        &format!("{} {PERIOD}", PERIOD / 100 * CPU_PERCENT),
    )
}

/// Kills what is in these folders and removes them, and the node's folder if they were its last.
pub fn end(folders: &[PathBuf]) {
    // From here on nothing new is started in it.
    for folder in folders {
        let _ = fs::write(folder.join("pids.max"), "0");
    }
    let until = Instant::now() + LIMIT;
    let mut left = None;
    while Instant::now() < until {
        left = folders.iter().find_map(|folder| remove(folder).err());
        if left.is_none() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if let Some(why) = left {
        tracing::warn!("a cgroup of an srun client stays: {why}");
    }
    for top in folders.iter().filter_map(|folder| folder.parent()) {
        // Busy: other clients are in it.
        let _ = fs::remove_dir(top);
    }
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            // Version 2, Linux ≥ 5.14; else one by one.
            if fs::write(folder.join("cgroup.kill"), "1").is_err() {
                let inside = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                for pid in inside
                    .lines()
                    .filter_map(|line| line.parse().ok())
                    .filter(|pid| *pid > 1)
                {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            Err(format!("{}: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}
