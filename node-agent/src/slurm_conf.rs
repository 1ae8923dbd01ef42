//! Slurm's settings as `scontrol show config` prints them: slurm.conf with its defaults, cgroup.conf, where the files lie.

use std::time::Duration;

/// What slurmctld runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmConf(String);

impl SlurmConf {
    /// From the text that scontrol prints.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A setting by its name as Slurm spells it; `None` if it is not there or not set.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == key).then(|| value.trim())
        });
        found.filter(|value| !value.is_empty() && *value != "(null)")
    }

    /// Whether `word` is among the comma-separated words of a setting (`PrologFlags`, `SlurmdParameters`).
    pub fn has(&self, key: &str, word: &str) -> bool {
        let words = self.get(key).unwrap_or_default();
        words.split(',').any(|it| it.trim().eq_ignore_ascii_case(word))
    }

    /// KillWait: between the request to end and the kill of what is left.
    pub fn kill_wait(&self) -> Option<Duration> {
        let seconds = self.get("KillWait")?.split(' ').next()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// All of it, as printed.
    pub fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_their_whole_name() {
        let conf = SlurmConf::new(
            "UnkillableKillWait = 1\nKillWait                = 30 sec\nPrologFlags = Alloc,Contain\nEpilog = (null)\nX =\n",
        );
        assert_eq!(conf.kill_wait(), Some(Duration::from_secs(30)));
        assert!(conf.has("PrologFlags", "contain") && !conf.has("PrologFlags", "X11"));
        assert_eq!(
            (conf.get("Epilog"), conf.get("X"), conf.get("None")),
            (None, None, None)
        );
    }
}
