//! What a process sees of its surroundings.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a process sees of its surroundings; the job's script and the engine should see the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Itself, as this PID namespace numbers it.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// GPUs' device files that it may open (a stand-in without a driver counts as well), sorted.
    pub gpus: Vec<String>,
    /// GPUs' device files that it is refused, sorted.
    pub refused: Vec<String>,
    /// `/proc/self/cgroup`: controllers and paths.
    pub cgroups: BTreeMap<String, String>,
    /// A process that it started in a session of its own; nothing but Slurm would find it if the runner were killed.
    pub child: Option<u32>,
}

impl Facts {
    /// Of this process.
    pub fn here() -> Self {
        let mut facts = Self {
            pid: std::process::id(),
            uid: nix::unistd::getuid().as_raw(),
            gpus: Vec::new(),
            refused: Vec::new(),
            cgroups: BTreeMap::new(),
            child: None,
        };
        let mut devices: Vec<String> = std::fs::read_dir("/dev")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_gpu(name))
            .collect();
        devices.sort();
        for name in devices {
            match may_open(&Path::new("/dev").join(&name)) {
                true => facts.gpus.push(name),
                false => facts.refused.push(name),
            }
        }
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            if let (Some(controller), Some(path)) = (parts.next(), parts.next()) {
                facts.cgroups.insert(controller.into(), path.into());
            }
        }
        facts
    }
}

fn is_gpu(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// The device cgroup says EPERM; what else goes wrong is the driver's business.
fn may_open(device: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    !opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_their_device_files() {
        assert!(is_gpu("nvidia0") && is_gpu("nvidia15"));
        assert!(!is_gpu("nvidiactl") && !is_gpu("nvidia-uvm") && !is_gpu("nvidia"));
        let facts = Facts::here();
        assert_eq!(facts.pid, std::process::id());
        let text = serde_json::to_string(&facts).expect("JSON");
        assert_eq!(serde_json::from_str::<Facts>(&text).expect("facts"), facts);
    }
}
