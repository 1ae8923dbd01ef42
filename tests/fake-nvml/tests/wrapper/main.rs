//! The stand-in as a program meets it: opened by nvml-wrapper, which knows nothing of it.

mod environment;
mod events;
mod exports;
mod faults;
mod fields;
mod gpm;
mod identity;
mod mig;
mod processes;
mod readings;
mod steering;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fake_nvml::{Gpu, SCENARIO_FILE, Scenario};
use nvml_wrapper::Nvml;

/// No wait of these tests takes longer, unless it is in vain.
const DEADLINE: Duration = Duration::from_secs(20);

/// A library of a test's own, open.
struct Fake {
    nvml: Nvml,
    scenario: Scenario,
    folder: tempfile::TempDir,
}

impl Fake {
    fn open(scenario: Scenario) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = fake_nvml::install(folder.path(), &scenario).unwrap();
        Self {
            nvml: Nvml::builder().lib_path(library.as_os_str()).init().unwrap(),
            scenario,
            folder,
        }
    }

    /// With one sound GPU, but for a change.
    fn with(change: impl FnOnce(&mut Gpu)) -> Self {
        let mut gpu = Gpu::h100_nvl(0);
        change(&mut gpu);
        Self::open(Scenario::with_gpus([gpu]))
    }

    /// Changes the scenario under the open library.
    fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        self.scenario.write(self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join(SCENARIO_FILE)
    }
}

/// Waits until something holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The moment that many seconds ago.
fn unix_ago(seconds: f64) -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
        - seconds
}
