//! What every check wants to know first: the settings, Slurm's own, and what kind of node this is.

use std::path::{Path, PathBuf};

use procfs::process::Process;
use serde::Serialize;
use slurm_serve::config::{Config, DEFAULT_PATH};
use slurm_serve::slurm::Slurm;
use slurm_serve::slurm_conf::SlurmConf;

use super::finding::Findings;

/// What kind of node this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Jobs run here.
    Compute,
    /// Jobs are submitted here.
    Login,
}

/// This node, as far as is known before anything is checked.
#[derive(Debug)]
pub struct Host {
    /// What it is called: by the settings, by slurmd, else by itself.
    pub node: String,
    pub role: Role,
    pub config: Config,
    /// slurm.conf, if slurmctld answers.
    pub slurm: Option<SlurmConf>,
    /// `scontrol show node`, one line, if Slurm knows this node.
    pub record: Option<String>,
    /// The daemon, if it runs here.
    pub slurmd: Option<Process>,
    pub is_root: bool,
}

impl Host {
    /// Looks. Broken settings are a FAIL, and the defaults are taken for the rest.
    pub async fn look(named: Option<&Path>, found: &mut Findings) -> Self {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let config = match Config::load(path, named.is_some()) {
            Ok(config) => {
                match path.exists() {
                    true => found.ok("settings", format!("{} is in order", path.display())),
                    false => found.ok("settings", format!("no {}: the defaults hold", path.display())),
                }
                config
            }
            Err(error) => {
                found.fail(
                    "settings",
                    error.to_string(),
                    "correct it; what follows is looked at with the defaults",
                );
                Config::default()
            }
        };
        let slurm = Slurm::new(&config.agent);
        let conf = match slurm.conf().await {
            Ok(conf) => {
                let version = conf.get("SLURM_VERSION").unwrap_or("of unknown version");
                let cluster = conf.get("ClusterName").unwrap_or("?");
                found.ok(
                    "slurmctld",
                    format!("answers: Slurm {version}, cluster {cluster}"),
                );
                Some(conf)
            }
            Err(error) => {
                found.fail(
                    "slurmctld",
                    error.to_string(),
                    "start slurmctld, or set agent.slurm_bin_dir; what needs slurm.conf is left out",
                );
                None
            }
        };
        let slurmd = slurmd();
        let node = config.agent.own_node();
        let record = slurm.node_record(&node).await.ok();
        let role = match slurmd.is_some() || record.is_some() {
            true => Role::Compute,
            false => Role::Login,
        };
        Self {
            node,
            role,
            config,
            slurm: conf,
            record,
            slurmd,
            is_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// A field of the node's record: `Gres`, `State`.
    pub fn field(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}=");
        let mut words = self.record.as_deref()?.split_whitespace();
        words
            .find_map(|word| word.strip_prefix(&prefix))
            .filter(|value| *value != "(null)")
    }
}

/// The oldest process of that name: its children bear it for a moment before they become slurmstepds.
fn slurmd() -> Option<Process> {
    let processes = procfs::process::all_processes().ok()?;
    processes
        .filter_map(|process| {
            let process = process.ok()?;
            let stat = process.stat().ok()?;
            (stat.comm == "slurmd").then_some((stat.starttime, process))
        })
        .min_by_key(|(started, _)| *started)
        .map(|(_, process)| process)
}

/// The program that a process runs, and whether its file has been replaced since. `None`: we may not look.
pub fn program(pid: i32) -> Option<(PathBuf, bool)> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let text = exe.to_string_lossy();
    Some(match text.strip_suffix(" (deleted)") {
        Some(path) => (path.into(), true),
        None => (exe.clone(), false),
    })
}
