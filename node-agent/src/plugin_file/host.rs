//! What this host's Slurm says of itself: its version, and where it looks for plugins.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::SlurmVersion;
use crate::slurm_conf::SlurmConf;

/// How long one of Slurm's commands may take; scontrol waits for a controller that may be down.
const LIMIT: Duration = Duration::from_secs(15);

/// The version of the Slurm whose commands are found here: slurmd's, for it is slurmd that must load the plugin; else
/// srun's, else scontrol's.
pub fn host_version() -> Option<SlurmVersion> {
    ["slurmd", "srun", "scontrol"]
        .into_iter()
        .find_map(|program| output(program, &["-V"]).ok()?.parse().ok())
}

/// Where Slurm looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// plugstack.conf.
    pub plugstack: PathBuf,
    /// PluginDir, which may be several.
    pub plugin_dirs: Vec<PathBuf>,
    /// Why Slurm could not be asked, if so; the paths are then the usual ones.
    pub guessed: Option<String>,
}

/// Asks `scontrol show config`; falls back to the usual places where there is no controller to ask.
pub fn host_paths() -> HostPaths {
    match output("scontrol", &["show", "config"]) {
        Ok(config) => HostPaths::from(&SlurmConf::new(config)),
        Err(why) => HostPaths {
            plugstack: "/etc/slurm/plugstack.conf".into(),
            plugin_dirs: USUAL_PLUGIN_DIRS
                .into_iter()
                .map(PathBuf::from)
                .filter(|dir| dir.is_dir())
                .collect(),
            guessed: Some(why),
        },
    }
}

const USUAL_PLUGIN_DIRS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/slurm-wlm",
    "/usr/lib/aarch64-linux-gnu/slurm-wlm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/local/lib/slurm",
];

impl From<&SlurmConf> for HostPaths {
    fn from(conf: &SlurmConf) -> Self {
        // Without PlugStackConfig it stands beside slurm.conf.
        let beside = conf
            .get("SLURM_CONF")
            .map_or("/etc/slurm/plugstack.conf".into(), |conf| {
                PathBuf::from(conf).with_file_name("plugstack.conf")
            });
        let told = conf.get("PlugStackConfig").map_or(beside, PathBuf::from);
        Self {
            plugstack: here(told, Path::new(FROM_SLURMCTLD)),
            plugin_dirs: conf
                .get("PluginDir")
                .map_or_else(Vec::new, |dirs| dirs.split(':').map(PathBuf::from).collect()),
            guessed: None,
        }
    }
}

/// Where a configless slurmd keeps what slurmctld handed it.
const FROM_SLURMCTLD: &str = "/run/slurm/conf/plugstack.conf";

/// slurmctld tells of its own host: a configless node has no file there.
fn here(told: PathBuf, handed_out: &Path) -> PathBuf {
    match !told.exists() && handed_out.exists() {
        true => handed_out.into(),
        false => told,
    }
}

/// stdout of a command that ended well. The error is one line.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let said = |what: String| format!("{program} {}: {what}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| said(error.to_string()))?;
    let mut pipe = child.stdout.take().ok_or_else(|| said("no output".into()))?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| said(error.to_string()))? {
            Some(status) => break status,
            None if started.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(said(format!("no answer within {} s", LIMIT.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = reader
        .join()
        .map_err(|_| said("its output could not be read".into()))?;
    let text = text.map_err(|error| said(error.to_string()))?;
    if status.success() {
        Ok(text)
    } else {
        Err(said(status.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_from_slurms_own_words() {
        let config = "Configuration data as of …\nPluginDir               = /a:/b\nPlugStackConfig         = (null)\n\
                      SLURM_CONF              = /etc/slurm/slurm.conf\n";
        let paths = HostPaths::from(&SlurmConf::new(config));
        assert_eq!(paths.plugstack, PathBuf::from("/etc/slurm/plugstack.conf"));
        assert_eq!(paths.plugin_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let paths = HostPaths::from(&SlurmConf::new("PlugStackConfig = /site/stack.conf\n"));
        assert_eq!(paths.plugstack, PathBuf::from("/site/stack.conf"));
    }

    #[test]
    fn a_configless_node_has_what_slurmctld_handed_it() {
        let folder = tempfile::tempdir().unwrap();
        let handed_out = folder.path().join("plugstack.conf");
        let told = PathBuf::from("/nonexistent/plugstack.conf");
        assert_eq!(here(told.clone(), &handed_out), told);
        std::fs::write(&handed_out, "").unwrap();
        assert_eq!(here(told, &handed_out), handed_out);
        assert_eq!(
            here("/etc/passwd".into(), &handed_out),
            PathBuf::from("/etc/passwd")
        );
    }

    #[test]
    fn a_command_that_is_missing_or_fails_gives_one_line() {
        assert!(
            output("no-such-command", &["-V"])
                .unwrap_err()
                .starts_with("no-such-command -V: ")
        );
        assert!(output("false", &[]).unwrap_err().contains("exit status: 1"));
    }
}
