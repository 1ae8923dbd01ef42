//! The plugin's arguments in plugstack.conf: `KEY=VALUE`, all optional.

use std::path::PathBuf;
use std::time::Duration;

/// What plugstack.conf may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `socket=PATH`: the agent's Unix socket.
    pub socket: PathBuf,
    /// `recipes=DIR`: the admin's recipes, as far as they can be read here.
    pub recipes: PathBuf,
    /// `agent_wait=SECONDS`: how long a tagged job waits for an agent that does not answer.
    pub agent_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: "/run/slurm-serve/agent.sock".into(),
            recipes: "/etc/slurm-serve/models.d".into(),
            agent_wait: Duration::from_secs(60),
        }
    }
}

/// The keys that [`Settings::parse`] knows.
pub const KEYS: [&str; 3] = ["socket", "recipes", "agent_wait"];

impl Settings {
    /// What the arguments say, and one line for each that says nothing to us. Those are ignored: a typo by the admin must not
    /// stop every job.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let mut complaints = Vec::new();
        for argument in arguments {
            let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
            match key {
                "socket" | "recipes" if !value.starts_with('/') => {
                    complaints.push(format!(
                        "plugstack argument {argument:?} ignored: {key} takes an absolute path"
                    ));
                }
                "socket" => settings.socket = value.into(),
                "recipes" => settings.recipes = value.into(),
                "agent_wait" => match value.parse() {
                    Ok(seconds) => settings.agent_wait = Duration::from_secs(seconds),
                    Err(_) => complaints.push(format!(
                        "plugstack argument {argument:?} ignored: agent_wait takes a number of seconds"
                    )),
                },
                _ => complaints.push(format!(
                    "plugstack argument {argument:?} ignored: known are {}",
                    KEYS.map(|known| format!("{known}=")).join(" ")
                )),
            }
        }
        (settings, complaints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_are_optional_and_known_ones_are_taken() {
        assert_eq!(Settings::parse([]), (Settings::default(), vec![]));
        let (settings, complaints) = Settings::parse(["socket=/a/s", "recipes=/r", "agent_wait=5"]);
        assert!(complaints.is_empty());
        assert_eq!(settings.socket, PathBuf::from("/a/s"));
        assert_eq!(settings.recipes, PathBuf::from("/r"));
        assert_eq!(settings.agent_wait, Duration::from_secs(5));
    }

    #[test]
    fn what_is_wrong_is_told_once_and_ignored() {
        let (settings, complaints) =
            Settings::parse(["sokcet=/a", "agent_wait=soon", "socket=run/s", "debug"]);
        assert_eq!(settings, Settings::default());
        assert_eq!(complaints.len(), 4);
        assert!(complaints[0].contains("sokcet=/a") && complaints[0].contains("agent_wait="));
    }
}
