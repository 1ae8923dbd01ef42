//! What an engine leaves outside its folder: shared memory and semaphores in /dev/shm, `vllm_dist_*` in /tmp (always the last; the
//! others after a SIGKILL).
//!
//! A name is ours only if a process of the engine was seen to hold it, mapped or open. Another job's of the same user look alike.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::processes;

/// Folder and beginnings of names to look at; nothing else is ever touched.
const WATCHED: &[(&str, &[&str])] = &[("/dev/shm", &["psm_", "sem.mp-"]), ("/tmp", &["vllm_dist_"])];

/// The names seen so far.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// There before the engine was: never ours.
    before: BTreeSet<PathBuf>,
    ours: BTreeSet<PathBuf>,
    /// Looked for and not found in the engine's hands.
    strange: BTreeSet<PathBuf>,
}

impl Leftovers {
    /// Remembers what is there already. Called before the engine starts.
    pub fn before() -> Self {
        Self {
            before: candidates(),
            ..Self::default()
        }
    }

    /// Looks at what the engine holds. Cheap while no new name has turned up; `thorough` looks all the same.
    pub fn sample(&mut self, engine: i32, thorough: bool) {
        let new: BTreeSet<PathBuf> = candidates()
            .into_iter()
            .filter(|path| !self.before.contains(path) && !self.ours.contains(path))
            .collect();
        if new.is_empty() || (!thorough && new == self.strange) {
            return;
        }
        let mut held = BTreeSet::new();
        for process in processes::family(engine) {
            held_by(process.pid, &mut held);
        }
        let (ours, strange) = new.into_iter().partition(|path| held.contains(path));
        self.ours.extend::<BTreeSet<_>>(ours);
        self.strange = strange;
    }

    /// Removes what is still there; returns what could not be removed, with the reason.
    pub fn remove(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for path in &self.ours {
            let removed = match std::fs::symlink_metadata(path) {
                Err(_) => continue,
                Ok(meta) if meta.uid() != nix::unistd::geteuid().as_raw() => continue,
                Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
                Ok(_) => std::fs::remove_file(path),
            };
            if let Err(e) = removed {
                failed.push(format!("{}: {e}", path.display()));
            }
        }
        failed
    }
}

/// This user's files with a watched name.
fn candidates() -> BTreeSet<PathBuf> {
    let me = nix::unistd::geteuid().as_raw();
    let mut found = BTreeSet::new();
    for (folder, beginnings) in WATCHED {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if beginnings.iter().any(|beginning| name.starts_with(beginning))
                && entry.metadata().is_ok_and(|meta| meta.uid() == me)
            {
                found.insert(entry.path());
            }
        }
    }
    found
}

fn held_by(pid: i32, held: &mut BTreeSet<PathBuf>) {
    if let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) {
        held.extend(maps.lines().filter_map(mapped));
    }
    if let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) {
        let targets = descriptors
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok());
        held.extend(targets.filter(|path| is_watched(path)));
    }
    // A folder is rarely open, but it may be somebody's working directory.
    held.extend(
        std::fs::read_link(format!("/proc/{pid}/cwd"))
            .ok()
            .filter(|path| is_watched(path)),
    );
}

/// The file of one line of /proc/PID/maps: the sixth field, if it is one of the watched.
fn mapped(line: &str) -> Option<PathBuf> {
    let path = Path::new(line.get(line.find('/')?..)?);
    is_watched(path).then(|| path.to_owned())
}

fn is_watched(path: &Path) -> bool {
    WATCHED.iter().any(|(folder, beginnings)| {
        path.strip_prefix(folder)
            .ok()
            .and_then(Path::to_str)
            .is_some_and(|name| beginnings.iter().any(|beginning| name.starts_with(beginning)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_for_watched_names_only() {
        let line = "7f1c-7f1d rw-s 00000000 00:1a 123    /dev/shm/psm_1a2b";
        assert_eq!(mapped(line), Some(PathBuf::from("/dev/shm/psm_1a2b")));
        assert_eq!(mapped("7f1c-7f1d rw-s 0 00:1a 1 /usr/lib/libc.so.6"), None);
        assert_eq!(mapped("7f1c-7f1d rw-p 0 00:00 0 [heap]"), None);
    }

    #[test]
    fn a_name_is_ours_only_when_held() {
        let name = |what: &str| PathBuf::from(format!("/dev/shm/psm_{what}{:x}", rand::random::<u64>()));
        let mut leftovers = Leftovers::before();
        let (mine, foreign) = (name("held"), name("foreign"));
        let held = std::fs::File::create(&mine).expect("made");
        std::fs::write(&foreign, "").expect("made");
        // This very process stands for the engine: its children's session is looked at, so a child holds the file.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(held)
            .spawn()
            .expect("sleep");
        leftovers.sample(child.id() as i32, true);
        child.kill().expect("killed");
        child.wait().expect("reaped");
        let failed = leftovers.remove();
        let left = (mine.exists(), foreign.exists());
        std::fs::remove_file(&foreign).expect("removed");
        assert_eq!((failed, left), (vec![], (false, true)));
    }
}
