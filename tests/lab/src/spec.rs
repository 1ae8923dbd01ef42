//! What a lab is to be: release, size, Slurm's settings, files to place.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Error, Result, bail};
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::state::Role;

/// A Slurm release, as a Debian suite carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Release {
    /// Debian 12 (bookworm).
    #[serde(rename = "22.05")]
    V22_05,
    /// Debian 13 (trixie).
    #[default]
    #[serde(rename = "24.11")]
    V24_11,
    /// Debian unstable (sid).
    #[serde(rename = "26.05")]
    V26_05,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V22_05, Self::V24_11, Self::V26_05];

    /// Slurm's name of it, such as `24.11`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V22_05 => "22.05",
            Self::V24_11 => "24.11",
            Self::V26_05 => "26.05",
        }
    }

    /// The Debian suite whose packages are used.
    pub fn suite(self) -> &'static str {
        match self {
            Self::V22_05 => "bookworm",
            Self::V24_11 => "trixie",
            Self::V26_05 => "sid",
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Release {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|release| release.name() == text) {
            Some(release) => Ok(release),
            None => bail!("no Slurm {text} here; there are 22.05, 24.11 and 26.05"),
        }
    }
}

/// Which nodes something is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// Every node.
    All,
    /// Every compute node.
    Compute,
    /// The compute nodes and the login node: where a plugin is needed.
    ComputeAndLogin,
    /// One, by its short name: `ctl`, `login`, `n1`.
    Node(String),
}

impl On {
    /// Whether a node is meant.
    pub fn includes(&self, role: Role, short: &str) -> bool {
        match self {
            Self::All => true,
            Self::Compute => role == Role::Compute,
            Self::ComputeAndLogin => matches!(role, Role::Compute | Role::Login),
            Self::Node(name) => name == short,
        }
    }
}

/// Where a placed file comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// These bytes, written with this mode, owned by root.
    Bytes(Vec<u8>, u32),
    /// A file or folder of the machine, bound in read-only: nothing is copied, so large binaries cost nothing.
    Bound(PathBuf),
}

/// A file or folder to be in place before any daemon starts.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Where.
    pub on: On,
    /// The absolute path in the node. Missing folders are made, 0755.
    pub path: PathBuf,
    /// What.
    pub source: Source,
}

/// Called in the middle of a node's start: its files are there, its daemons not yet.
pub type Prepare = Arc<dyn Fn(&Node) -> Result<()> + Send + Sync>;

/// What a lab is to be. `LabSpec::default()` is two compute nodes with two GPU stand-ins each, on Slurm 24.11.
#[derive(Clone)]
pub struct LabSpec {
    /// Slurm's release.
    pub release: Release,
    /// Compute nodes, 1 to 200.
    pub nodes: u16,
    /// GPU stand-ins on each, 0 to 64.
    pub gpus: u16,
    /// CPUs each node claims to have.
    pub cpus: u16,
    /// Memory each node claims to have, in MiB. Job limits are real (cgroups); this sum isn't checked.
    pub memory: u32,
    /// Settings of slurm.conf that replace ours or come on top, in order; `None` leaves ours out.
    pub settings: Vec<(String, Option<String>)>,
    /// Whole lines for slurm.conf.
    pub lines: Vec<String>,
    /// Files to be in place before the daemons start (slurmd knows the hooks of a plugin from its start on).
    pub files: Vec<Placed>,
    /// Run in this order in each node before its daemons start.
    pub prepare: Vec<Prepare>,
    /// Whether vLLM and the tiny model are bound in (they are made first, if they aren't there).
    pub vllm: bool,
    /// Whether the lab outlives this process and [`crate::Lab`]'s drop.
    pub keep: bool,
}

impl Default for LabSpec {
    fn default() -> Self {
        Self {
            release: Release::default(),
            nodes: 2,
            gpus: 2,
            cpus: 8,
            memory: 16_000,
            settings: Vec::new(),
            lines: Vec::new(),
            files: Vec::new(),
            prepare: Vec::new(),
            vllm: false,
            keep: false,
        }
    }
}

impl LabSpec {
    /// Gives a setting of slurm.conf another value, or adds it.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.into(), Some(value.into())));
        self
    }

    /// Places bytes as a file of root's.
    pub fn file(mut self, on: On, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.files.push(Placed {
            on,
            path: path.into(),
            source: Source::Bytes(bytes.into(), mode),
        });
        self
    }

    /// Binds a file or folder of the machine into nodes, read-only.
    pub fn bind(mut self, on: On, path: impl Into<PathBuf>, from: impl AsRef<Path>) -> Self {
        let source = Source::Bound(from.as_ref().to_path_buf());
        self.files.push(Placed {
            on,
            path: path.into(),
            source,
        });
        self
    }

    /// Runs `step` in each node once its files are in place, before its daemons start.
    pub fn prepare(mut self, step: impl Fn(&Node) -> Result<()> + Send + Sync + 'static) -> Self {
        self.prepare.push(Arc::new(step));
        self
    }

    /// Refuses what can't be built.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=200).contains(&self.nodes) {
            bail!("a lab has 1 to 200 compute nodes, not {}", self.nodes);
        }
        if self.gpus > 64 {
            bail!("a node has at most 64 GPU stand-ins, not {}", self.gpus);
        }
        for placed in &self.files {
            if !placed.path.is_absolute() {
                bail!(
                    "{} is no absolute path: files are placed by absolute paths",
                    placed.path.display()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_by_name() {
        assert_eq!("24.11".parse::<Release>().unwrap(), Release::V24_11);
        assert!(
            "25.05"
                .parse::<Release>()
                .unwrap_err()
                .to_string()
                .contains("there are 22.05")
        );
    }

    #[test]
    fn on_means_what_it_says() {
        assert!(On::All.includes(Role::Controller, "ctl"));
        assert!(!On::Compute.includes(Role::Login, "login"));
        assert!(On::ComputeAndLogin.includes(Role::Login, "login"));
        assert!(On::Node("n2".into()).includes(Role::Compute, "n2"));
        assert!(!On::Node("n2".into()).includes(Role::Compute, "n1"));
    }

    #[test]
    fn impossible_labs_are_refused() {
        let none = LabSpec {
            nodes: 0,
            ..LabSpec::default()
        };
        assert!(none.check().is_err());
        let relative = LabSpec::default().file(On::All, "etc/x", "", 0o644);
        assert!(
            relative
                .check()
                .unwrap_err()
                .to_string()
                .starts_with("etc/x is no absolute path")
        );
    }
}
