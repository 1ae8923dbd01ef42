//! The whole of what the library says.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::bus_id::BusId;
use crate::faults::Faults;
use crate::field::FieldKey;
use crate::{ErrorCode, Gpu};

/// A machine's GPUs and their driver, as a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// As `570.133.20`.
    pub driver_version: Option<String>,
    /// As 12080, for 12.8.
    pub cuda_version: Option<i32>,
    /// As `12.570.133.20`.
    pub nvml_version: Option<String>,
    /// Why `nvmlInit` fails.
    pub init_error: Option<ErrorCode>,
    /// Functions (or `*`) that fail, and how. One that takes a GPU fails before it looks at it.
    pub errors: BTreeMap<String, ErrorCode>,
    /// Functions (or `*`) that take so many microseconds, asleep.
    pub delays_us: BTreeMap<String, u64>,
    /// Functions (or `*`) that don't come back, until the file no longer says so.
    pub hangs: Vec<String>,
    /// A file for the number of calls of each function so far: a JSON object, written at shutdown and while calls come, once a
    /// second at most. Each process counts for itself, so no two should write the same file.
    pub calls_to: Option<PathBuf>,
    /// The moment, in seconds since the epoch, from which all times here count, in place of the first initialisation: for several processes,
    /// or one that is started again, that are to see the same GPUs.
    pub started_unix_s: Option<f64>,
    /// In NVML's order.
    pub gpus: Vec<Gpu>,
}

impl Scenario {
    /// A sound driver with these GPUs.
    pub fn with_gpus(gpus: impl IntoIterator<Item = Gpu>) -> Self {
        Self {
            driver_version: Some("570.133.20".into()),
            cuda_version: Some(12_080),
            nvml_version: Some("12.570.133.20".into()),
            gpus: gpus.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Reads a scenario and looks for mistakes in it: names that nothing has, GPUs that can't be told apart.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Puts the file in place, at once: a library that reads it sees either the old one or the new one. A scenario that the library would
    /// refuse is refused here.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let text = serde_json::to_string_pretty(self)?;
        Self::parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        replace(path, text.as_bytes())
    }

    fn check(&self) -> Result<(), String> {
        let (mut uuids, mut places) = (BTreeSet::new(), Vec::new());
        no_typos(self.faults())?;
        for gpu in &self.gpus {
            no_typos(gpu.faults())?;
            let place = BusId::parse(&gpu.pci_bus_id)
                .ok_or_else(|| format!("{:?} is no PCI address, as 00000000:3B:00.0", gpu.pci_bus_id))?;
            if places.contains(&place) {
                return Err(format!("two GPUs at {}", gpu.pci_bus_id));
            }
            places.push(place);
            let instances = gpu.mig.iter().flat_map(|mig| &mig.instances);
            for uuid in instances.map(|instance| &instance.uuid).chain([&gpu.uuid]) {
                if uuid.is_empty() || !uuids.insert(uuid) {
                    return Err(format!(
                        "uuid {uuid:?}: every GPU and MIG instance has one of its own"
                    ));
                }
            }
            for key in gpu.fields.keys() {
                FieldKey::parse(key).ok_or_else(|| format!("field {key:?}: 138, 138@0 or 138@all"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn faults(&self) -> Faults<'_> {
        Faults {
            errors: &self.errors,
            delays_us: &self.delays_us,
            hangs: &self.hangs,
        }
    }
}

fn no_typos(faults: Faults<'_>) -> Result<(), String> {
    match faults.unknown() {
        Some(name) => Err(format!("{name} is no function of this library")),
        None => Ok(()),
    }
}

/// Writes a file under another name and moves it into place.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".new-{}", std::process::id()));
    std::fs::write(&new, content)?;
    // The file system's own clock ticks every few milliseconds: by it, two versions of the same size could look the same.
    std::fs::File::options()
        .write(true)
        .open(&new)?
        .set_modified(SystemTime::now())?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenario.json");
        let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]);
        scenario
            .errors
            .insert("nvmlDeviceGetName".into(), ErrorCode::UNKNOWN);
        scenario.gpus[0].fields.insert("138@all".into(), 7.into());
        scenario.write(&path).unwrap();
        assert_eq!(
            Scenario::parse(&std::fs::read_to_string(&path).unwrap()),
            Ok(scenario)
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn little_needs_saying() {
        let scenario = Scenario::parse(
            r#"{"gpus": [{"uuid": "GPU-1", "pci_bus_id": "3b:00.0", "power": {"average": 1000}}]}"#,
        );
        assert_eq!(scenario.unwrap().gpus[0].power.average, Some(1000.into()));
    }

    #[test]
    fn mistakes_are_refused_by_name() {
        let refused = |change: fn(&mut Scenario)| {
            let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]);
            change(&mut scenario);
            scenario.check().unwrap_err()
        };
        assert!(refused(|s| s.hangs.push("nvmlDeviceGetNane".into())).contains("nvmlDeviceGetNane"));
        assert!(refused(|s| s.gpus[1].uuid = s.gpus[0].uuid.clone()).contains("uuid"));
        assert!(refused(|s| s.gpus[1].pci_bus_id = "1:0".into()).contains("two GPUs"));
        assert!(refused(|s| drop(s.gpus[0].fields.insert("82@".into(), 1.into()))).contains("82@"));
        assert!(
            Scenario::parse(r#"{"gpu": []}"#)
                .unwrap_err()
                .contains("unknown field")
        );
    }
}
