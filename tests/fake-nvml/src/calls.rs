//! How often each function was called, for tests of what costs how much.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::scenario::replace;

/// The least time between two writings.
const PAUSE: Duration = Duration::from_secs(1);

/// The count of calls.
#[derive(Default)]
pub struct Calls {
    counts: BTreeMap<&'static str, u64>,
    written: Option<Instant>,
    news: bool,
}

impl Calls {
    /// One more.
    pub fn count(&mut self, function: &'static str) {
        *self.counts.entry(function).or_default() += 1;
        self.news = true;
    }

    /// Writes the file, if it is time to.
    pub fn write_if_due(&mut self, path: &Path) {
        if self.news && self.written.is_none_or(|written| written.elapsed() >= PAUSE) {
            self.write(path);
        }
    }

    /// Writes the file.
    pub fn write(&mut self, path: &Path) {
        let written = serde_json::to_vec(&self.counts)
            .map_err(std::io::Error::other)
            .and_then(|text| replace(path, &text));
        if let Err(error) = written {
            eprintln!("fake-nvml: {}: {error}", path.display());
        }
        self.written = Some(Instant::now());
        self.news = false;
    }
}
