//! What a lab writes down of itself, so that another process can enter it or take it down.
//!
//! One folder per lab under `$SLURM_SERVE_LAB` (default `/run/slurm-serve-lab`): `lab.json`, `home/` (shared by the
//! nodes), `root/` (an empty mount point; what is mounted there is seen in the nodes' mount namespaces only).

use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process::ProcessId;
use crate::spec::Release;

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs slurmctld.
    Controller,
    /// Where people log in and submit: client commands, no Slurm daemon.
    Login,
    /// Runs slurmd.
    Compute,
}

/// One node, as written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Its name in the API: `ctl`, `login`, `n1`.
    pub short: String,
    /// Its host name, with the lab's id in front.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its IPv4 address on the lab's bridge.
    pub address: String,
    /// Its first process; the end of that one is the end of the node.
    pub init: Option<ProcessId>,
}

/// One lab, as written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// Short and random; begins every node's name.
    pub id: String,
    /// Slurm's release.
    pub release: Release,
    /// Whether it is to outlive the process that started it.
    pub keep: bool,
    /// The process that started it.
    pub owner: ProcessId,
    /// Whether it ever came up whole.
    pub complete: bool,
    /// The hub's first process.
    pub hub: Option<ProcessId>,
    /// Controller, login node, compute nodes.
    pub nodes: Vec<NodeState>,
}

/// The folder of all labs' state.
pub(crate) fn base() -> PathBuf {
    std::env::var_os("SLURM_SERVE_LAB").map_or_else(|| "/run/slurm-serve-lab".into(), PathBuf::from)
}

/// The state folder of one lab. Fails on what can't be an id, so that no path goes astray.
pub(crate) fn folder(id: &str) -> Result<PathBuf> {
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        bail!("{id:?} is no lab id: they are small letters and digits (see `lab list`)");
    }
    Ok(base().join(id))
}

/// Ids of the labs that have a state folder, sorted.
pub fn labs() -> Result<Vec<String>> {
    let base = base();
    let entries = match fs::read_dir(&base) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", base.display())),
    };
    let mut ids = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    ids.retain(|id| folder(id).is_ok());
    ids.sort();
    Ok(ids)
}

impl LabState {
    /// Makes a state folder under a fresh id.
    pub(crate) fn create(release: Release, keep: bool) -> Result<Self> {
        let base = base();
        make_base(&base)?;
        for _ in 0..100 {
            let id = random_id()?;
            let folder = folder(&id)?;
            // Closed to the machine's users: some have a uid that a lab's user has, and /home lies in it.
            match fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                // The last other lab went just now, and the folder with it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    make_base(&base)?;
                    continue;
                }
                Err(error) => return Err(error).with_context(|| format!("can't make {}", folder.display())),
            }
            let owner = ProcessId::own().context("can't read /proc/self/stat")?;
            let state = Self {
                id,
                release,
                keep,
                owner,
                complete: false,
                hub: None,
                nodes: Vec::new(),
            };
            state.save()?;
            return Ok(state);
        }
        bail!("no free lab id under {} after 100 tries", base.display())
    }

    /// Reads a lab's state.
    pub fn load(id: &str) -> Result<Self> {
        let path = folder(id)?.join("lab.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let known = labs()?;
                let known = if known.is_empty() {
                    "there is none".into()
                } else {
                    known.join(", ")
                };
                bail!("no lab {id} here (labs: {known})")
            }
            Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
        };
        serde_json::from_slice(&text).with_context(|| format!("{} isn't a lab's state", path.display()))
    }

    /// Writes it down, so that a reader sees the old or the new text.
    pub(crate) fn save(&self) -> Result<()> {
        let folder = self.folder()?;
        let (new, path) = (folder.join("lab.json.new"), folder.join("lab.json"));
        fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("can't write {}", path.display()))
    }

    /// Its state folder.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        folder(&self.id)
    }

    /// Whether nobody is responsible for it any more: its starter is gone, and it isn't to be kept or was never whole.
    pub fn is_orphan(&self) -> bool {
        let kept = self.keep && self.complete;
        !kept && !self.owner.is_alive()
    }
}

fn make_base(base: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(base)
        .with_context(|| format!("can't make the state folder {}", base.display()))?;
    let owner = fs::metadata(base)
        .with_context(|| format!("can't look at {}", base.display()))?
        .uid();
    if owner != 0 {
        bail!(
            "{} belongs to uid {owner}, not to root: remove it or set SLURM_SERVE_LAB",
            base.display()
        );
    }
    Ok(())
}

/// Four characters, a letter first and last: a host list like `ID-n[1-2]` stays unambiguous.
fn random_id() -> Result<String> {
    let mut random = [0u8; 4];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .context("can't read /dev/urandom")?;
    // Without vowels no id spells a word.
    let letters = b"bcdfghjkmnpqrstvwxz";
    let pick = |byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
    Ok(random.into_iter().map(pick).collect())
}

/// The mount point for roots in a state folder.
pub(crate) fn root_point(folder: &Path) -> PathBuf {
    folder.join("root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain() {
        let id = random_id().unwrap();
        assert_eq!(id.len(), 4);
        assert!(folder(&id).is_ok());
    }

    #[test]
    fn a_path_is_no_id() {
        assert!(folder("../etc").unwrap_err().to_string().contains("is no lab id"));
        assert!(folder("").is_err());
    }
}
