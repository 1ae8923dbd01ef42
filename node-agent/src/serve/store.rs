//! What must survive the agent: launches under `state_dir` (no keys), secrets under `run_dir` (tmpfs, 0600).
//!
//! Every write goes to a temporary file and is renamed into place, so that a crash leaves the old or the new one, never half.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slurm_serve_proto::v1;

use super::confine::Held;
use super::state::Kept;
use slurm_serve_recipe::CatalogFields;

/// A model that was launched: all an agent must know to take it up again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// `JOB.RESTART.ATTEMPT-RANDOM` of its first attempt: it names the launch, too.
    pub generation: String,
    /// Slurm's job id.
    pub job_id: u32,
    /// Of a heterogeneous job: which component of it.
    #[serde(default)]
    pub component: Option<u32>,
    /// How often the job was requeued.
    pub restart_count: u32,
    /// The job's owner.
    pub uid: u32,
    /// By name.
    pub user: String,
    /// ClusterName; may be empty.
    pub cluster: String,
    /// What clients call it.
    pub public_name: String,
    /// What else it answers to.
    pub aliases: Vec<String>,
    /// The recipe's name.
    pub recipe: String,
    /// chat, completion, …
    pub task: String,
    /// What its recipe says for catalogs, if it stands under the site's own name.
    #[serde(default)]
    pub catalog: CatalogFields,
    /// Is it in public catalogs?
    pub published: bool,
    /// Is the job cancelled when its server is lost for good?
    pub cancel_job_on_failure: bool,
    /// First of the engine's window of internal ports.
    pub internal_port: u16,
    /// The guard's port.
    pub port: u16,
    /// Milliseconds since the epoch; 0 = unknown.
    pub end_ms: i64,
    /// Milliseconds since the epoch when it was launched.
    pub launched_ms: i64,
    /// How long readiness may take, counted from the engine's start.
    pub ready_timeout_s: u32,
    /// How its life stands.
    pub life: Kept,
    /// Why the attempt before the present one failed.
    pub last_failure: Option<LastFailure>,
    /// The srun client: pid, and start time in clock ticks since boot, which tells it from a later process of the same pid.
    pub client: Option<(i32, u64)>,
    /// What holds that client.
    #[serde(default)]
    pub confined: Option<Held>,
    /// The runner, likewise.
    pub runner: Option<(i32, u64)>,
}

/// Why an attempt failed, in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastFailure {
    cause: i32,
    text: String,
    hint: String,
    wait_status: Option<i32>,
}

impl From<&v1::Ending> for LastFailure {
    fn from(ending: &v1::Ending) -> Self {
        Self {
            cause: ending.cause,
            text: ending.text.clone(),
            hint: ending.hint.clone(),
            wait_status: ending.wait_status,
        }
    }
}

impl From<&LastFailure> for v1::Ending {
    fn from(failure: &LastFailure) -> Self {
        Self {
            cause: failure.cause,
            text: failure.text.clone(),
            hint: failure.hint.clone(),
            wait_status: failure.wait_status,
            ..Self::default()
        }
    }
}

/// What nobody else may know of a launch.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Secrets {
    /// The job's key at the guard.
    pub key: String,
    /// What the runner shows until it has its secret; `None` once it has shown that.
    pub nonce: Option<String>,
    /// What the runner shows every later time.
    pub secret: String,
    /// The runner's order, encoded: it holds the job's environment.
    order: Vec<u8>,
}

impl Secrets {
    /// Fresh secrets for a launch; the order is completed with the key.
    pub fn new(mut order: v1::LaunchOrder) -> Self {
        let key = format!("sk-serve-{}", random());
        order.key = key.clone();
        Self {
            key,
            nonce: Some(random()),
            secret: random(),
            order: order.encode_to_vec(),
        }
    }

    /// Fresh ones for another runner of the same launch, which begins with this attempt. The key stays: the job's environment holds it.
    pub fn renew(&mut self, attempt: u32) -> Result<(), prost::DecodeError> {
        let mut order = self.order()?;
        order.attempt = attempt;
        *self = Self {
            key: std::mem::take(&mut self.key),
            nonce: Some(random()),
            secret: random(),
            order: order.encode_to_vec(),
        };
        Ok(())
    }

    /// What the runner is told to do.
    pub fn order(&self) -> Result<v1::LaunchOrder, prost::DecodeError> {
        v1::LaunchOrder::decode(self.order.as_slice())
    }
}

fn random() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}

// Written by hand so that no log can ever hold a key.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(…)")
    }
}

/// Why something could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; the agent must be root, and the disk must have room")]
pub struct StoreError {
    path: PathBuf,
    source: std::io::Error,
}

/// The two folders.
#[derive(Debug, Clone)]
pub struct Store {
    launches: PathBuf,
    secrets: PathBuf,
}

impl Store {
    /// Makes the folders, 0700.
    pub fn open(state_dir: &Path, run_dir: &Path) -> Result<Self, StoreError> {
        let store = Self {
            launches: state_dir.join("launches"),
            secrets: run_dir.join("secrets"),
        };
        for folder in [&store.launches, &store.secrets] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|source| StoreError {
                path: folder.clone(),
                source,
            })?;
        }
        Ok(store)
    }

    /// Keeps a launch.
    pub fn save(&self, launch: &Launch) -> Result<(), StoreError> {
        write(&self.launches, &launch.generation, launch)
    }

    /// Keeps its secrets.
    pub fn save_secrets(&self, generation: &str, secrets: &Secrets) -> Result<(), StoreError> {
        write(&self.secrets, generation, secrets)
    }

    /// Forgets it all. What is already gone is fine; what cannot be removed is said in the log.
    pub fn forget(&self, generation: &str) {
        let files = [file(&self.launches, generation), file(&self.secrets, generation)];
        for path in files {
            if let Err(e) = fs::remove_file(&path)
                && e.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), "cannot be removed: {e}");
            }
        }
    }

    /// The launches of a former life with their secrets. One whose secrets are gone (a reboot) is forgotten: so is its job.
    pub fn recover(&self) -> Vec<(Launch, Secrets)> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.launches) {
            Ok(entries) => entries,
            Err(e) => {
                tracing::error!(path = %self.launches.display(), "cannot be read: {e}");
                return found;
            }
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
                .unwrap_or_default();
            let secrets = read::<Secrets>(&file(&self.secrets, &name));
            match (
                path.extension().is_some_and(|e| e == "json"),
                read::<Launch>(&path),
                secrets,
            ) {
                (true, Some(launch), Some(secrets)) => found.push((launch, secrets)),
                _ => {
                    tracing::warn!(path = %path.display(), "no launch that could still be running; removed");
                    self.forget(&name);
                    let _ = fs::remove_file(&path);
                }
            }
        }
        found
    }
}

fn file(folder: &Path, generation: &str) -> PathBuf {
    folder.join(format!("{generation}.json"))
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write<T: Serialize>(folder: &Path, generation: &str, value: &T) -> Result<(), StoreError> {
    let (path, temporary) = (file(folder, generation), folder.join(format!("{generation}.new")));
    let result = (|| {
        let text = serde_json::to_vec(value)?;
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&temporary)?.write_all(&text)?;
        fs::rename(&temporary, &path)
    })();
    result.map_err(|source| {
        // What was half written would only take the room that is wanting.
        let _ = fs::remove_file(&temporary);
        StoreError { path, source }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    pub fn launch(generation: &str) -> Launch {
        Launch {
            generation: generation.into(),
            job_id: 7,
            component: None,
            restart_count: 0,
            uid: 2001,
            user: "alice".into(),
            cluster: "lab".into(),
            public_name: "tiny".into(),
            aliases: vec![],
            recipe: "tiny".into(),
            task: "chat".into(),
            catalog: CatalogFields::default(),
            published: true,
            cancel_job_on_failure: false,
            internal_port: 18200,
            port: 18100,
            end_ms: 0,
            launched_ms: 0,
            ready_timeout_s: 1800,
            life: crate::serve::state::Life::new(4).kept(),
            last_failure: None,
            client: None,
            confined: None,
            runner: None,
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_keys_stay_out_of_the_state_folder() {
        let (state, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(state.path(), run.path()).unwrap();
        let secrets = Secrets::new(v1::LaunchOrder {
            job_id: 7,
            ..Default::default()
        });
        assert_eq!(secrets.order().unwrap().key, secrets.key);
        store.save(&launch("7.0.1-a")).unwrap();
        store.save_secrets("7.0.1-a", &secrets).unwrap();
        assert_eq!(store.recover(), [(launch("7.0.1-a"), secrets.clone())]);
        let text = fs::read_to_string(state.path().join("launches/7.0.1-a.json")).unwrap();
        assert!(!text.contains(&secrets.key));
        let mode = fs::metadata(run.path().join("secrets/7.0.1-a.json"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        store.forget("7.0.1-a");
        assert_eq!(store.recover(), []);
        assert_eq!(fs::read_dir(run.path().join("secrets")).unwrap().count(), 0);
    }

    #[test]
    fn another_runner_gets_the_same_key_and_nothing_else_of_the_first() {
        let mut secrets = Secrets::new(v1::LaunchOrder {
            attempt: 1,
            ..Default::default()
        });
        let first = secrets.clone();
        secrets.nonce = None;
        secrets.renew(2).unwrap();
        let order = secrets.order().unwrap();
        assert_eq!(order.attempt, 2);
        assert_eq!((&secrets.key, &order.key), (&first.key, &first.key));
        assert_ne!(secrets.secret, first.secret);
        assert!(secrets.nonce.is_some() && secrets.nonce != first.nonce);
    }

    #[test]
    fn a_launch_from_before_a_reboot_or_half_a_file_is_dropped() {
        let (state, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(state.path(), run.path()).unwrap();
        store.save(&launch("7.0.1-a")).unwrap();
        fs::write(state.path().join("launches/8.0.1-b.json"), "{").unwrap();
        assert_eq!(store.recover(), []);
        assert_eq!(fs::read_dir(state.path().join("launches")).unwrap().count(), 0);
    }
}
