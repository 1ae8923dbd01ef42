//! Whether the kernel killed a process of this step for memory: the counter of the memory cgroup that the runner and its engine share.

use std::path::PathBuf;

/// Where the counter is, and how it stood.
#[derive(Debug)]
pub struct OomKills {
    file: Option<PathBuf>,
    before: u64,
}

impl OomKills {
    /// Takes the counter as it stands. Without a memory cgroup there is none and nothing is ever found.
    pub fn now() -> Self {
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = counter_file(&cgroups).filter(|file| file.exists());
        let before = file.as_ref().map_or(0, read);
        Self { file, before }
    }

    /// Whether there is a counter, and it has not risen: whatever was killed was not killed for this step's memory.
    pub fn ruled_out(&self) -> bool {
        self.file.is_some() && !self.happened()
    }

    /// Whether it has risen since.
    pub fn happened(&self) -> bool {
        self.file.as_ref().is_some_and(|file| read(file) > self.before)
    }
}

fn read(file: &PathBuf) -> u64 {
    std::fs::read_to_string(file).map_or(0, |text| parse(&text))
}

/// `oom_kill N`, in both versions.
fn parse(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// From /proc/self/cgroup: `4:memory:/PATH` (v1) goes before `0::/PATH` (v2).
fn counter_file(cgroups: &str) -> Option<PathBuf> {
    let entries = || {
        cgroups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            Some((parts.next()?, parts.next()?, parts.next()?))
        })
    };
    let v1 = entries().find(|(_, controllers, _)| controllers.split(',').any(|name| name == "memory"));
    if let Some((_, _, path)) = v1 {
        return Some(format!("/sys/fs/cgroup/memory{path}/memory.oom_control").into());
    }
    let (_, _, path) = entries().find(|(id, controllers, _)| *id == "0" && controllers.is_empty())?;
    Some(format!("/sys/fs/cgroup{path}/memory.events").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_counter_nothing_is_ruled_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory.events");
        std::fs::write(&file, "oom_kill 3\n").expect("written");
        let kills = |file, before| OomKills { file, before };
        assert!(!kills(None, 0).ruled_out() && !kills(None, 0).happened());
        assert!(kills(Some(file.clone()), 3).ruled_out());
        assert!(kills(Some(file), 2).happened());
    }

    #[test]
    fn both_versions_are_found() {
        let v1 = "5:cpuset:/x\n4:memory:/slurm/uid_1/job_7/step_0\n0::/\n";
        let file = "/sys/fs/cgroup/memory/slurm/uid_1/job_7/step_0/memory.oom_control";
        assert_eq!(counter_file(v1), Some(file.into()));
        let file = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.events";
        assert_eq!(
            counter_file("0::/system.slice/slurmstepd.scope/job_7\n"),
            Some(file.into())
        );
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(parse("low 0\noom 3\noom_kill 1\noom_group_kill 0\n"), 1);
    }
}
