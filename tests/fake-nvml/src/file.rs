//! The scenario's file, read whenever it has changed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Scenario;

/// A scenario that follows its file.
pub struct ScenarioFile {
    path: PathBuf,
    seen: Option<Stamp>,
    good: Option<Arc<Scenario>>,
}

/// What tells one version of a file from another without reading it.
#[derive(PartialEq)]
struct Stamp {
    place: (u64, u64),
    modified: (i64, i64),
    size: u64,
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            place: (file.dev(), file.ino()),
            modified: (file.mtime(), file.mtime_nsec()),
            size: file.len(),
        }
    }
}

impl ScenarioFile {
    /// Reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: None,
            good: None,
        }
    }

    /// Whether there is one, good or not.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The newest that was good.
    pub fn current(&mut self) -> Option<&Arc<Scenario>> {
        // The stamp is taken before the content: one that is replaced in between is read again at the next call.
        let stamp = std::fs::metadata(&self.path).ok().map(|file| Stamp::of(&file));
        if stamp.is_some() && stamp != self.seen {
            self.seen = stamp;
            match self.read() {
                Ok(scenario) => self.good = Some(Arc::new(scenario)),
                Err(error) => eprintln!(
                    "fake-nvml: {}: {error}; the one before goes on",
                    self.path.display()
                ),
            }
        }
        self.good.as_ref()
    }

    fn read(&self) -> Result<Scenario, String> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| error.to_string())?;
        Scenario::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpu;

    #[test]
    fn the_last_good_one_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenario.json");
        let mut file = ScenarioFile::new(path.clone());
        assert!(!file.exists() && file.current().is_none());

        Scenario::default().write(&path).unwrap();
        assert!(file.current().unwrap().gpus.is_empty());
        Scenario::with_gpus([Gpu::h100_nvl(0)]).write(&path).unwrap();
        assert_eq!(file.current().unwrap().gpus.len(), 1);

        std::fs::write(&path, "{").unwrap();
        assert_eq!(file.current().unwrap().gpus.len(), 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.current().unwrap().gpus.len(), 1);

        Scenario::default().write(&path).unwrap();
        assert!(file.current().unwrap().gpus.is_empty());
    }
}
