//! A scripted driver, and the telemetry of a node that has it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fake_nvml::{Gpu, Scenario};
use slurm_serve::config;
use slurm_serve::rpc::Counts;
use slurm_serve::telemetry::{Place, Telemetry, Watching};
use slurm_serve_proto::v1;
use tokio::sync::watch;

/// Long past what anything here takes; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both, with what they need to live.
pub struct Site {
    folder: tempfile::TempDir,
    pub telemetry: Arc<Telemetry>,
    watching: Watching,
    _cluster: watch::Sender<String>,
}

impl Site {
    /// With that driver.
    pub fn with(scenario: &Scenario) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = fake_nvml::install(folder.path(), scenario).unwrap();
        Self::up(folder, library)
    }

    /// With healthy GPUs.
    pub fn with_gpus(count: u32) -> Self {
        Self::with(&Scenario::with_gpus((0..count).map(Gpu::h100_nvl)))
    }

    /// With nothing.
    pub fn without_driver() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        Self::up(folder, library)
    }

    /// With a library that is none.
    pub fn with_rubbish() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&library, "no library").unwrap();
        Self::up(folder, library)
    }

    fn up(folder: tempfile::TempDir, nvml_library: PathBuf) -> Self {
        let (cluster, known) = watch::channel("lab".to_owned());
        let place = Place {
            node: "n1".into(),
            cluster: known,
            program: Path::new(env!("CARGO_BIN_EXE_slurm-serve")).into(),
            counts: Counts::default(),
            max_watchers: 2,
        };
        let config = config::Telemetry {
            interval: Duration::from_millis(50),
            hang_after: Duration::from_millis(500),
            nvml_library,
            ..config::Telemetry::default()
        };
        let telemetry = Telemetry::start(place, &config).unwrap();
        Self {
            watching: telemetry.watch().unwrap(),
            folder,
            telemetry,
            _cluster: cluster,
        }
    }

    /// The driver does something else from now on.
    pub fn plays(&self, scenario: &Scenario) {
        let file = self.folder.path().join(fake_nvml::SCENARIO_FILE);
        scenario.write(file).unwrap();
    }

    /// Processes that read this driver.
    pub fn readers(&self) -> usize {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let reads = |process: procfs::ProcResult<procfs::process::Process>| {
            let words = process.and_then(|process| process.cmdline()).unwrap_or_default();
            words.iter().any(|word| word.contains(&folder))
        };
        procfs::process::all_processes()
            .unwrap()
            .map(reads)
            .filter(|it| *it)
            .count()
    }

    /// The first sample of which this holds.
    pub async fn until(
        &mut self,
        what: &str,
        holds: impl Fn(&v1::NodeSample) -> bool,
    ) -> Arc<v1::NodeSample> {
        let seen = self.watching.samples.wait_for(|sample| holds(sample));
        match tokio::time::timeout(PATIENCE, seen).await {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("not in time: {what}; last: {:#?}", self.telemetry.latest()),
        }
    }

    /// Until the driver is like this.
    pub async fn until_driver(&mut self, state: v1::DriverState) -> Arc<v1::NodeSample> {
        let is = |sample: &v1::NodeSample| sample.driver.as_ref().is_some_and(|it| it.state() == state);
        self.until(state.as_str_name(), is).await
    }
}

/// What is said of the driver.
pub fn text(sample: &v1::NodeSample) -> &str {
    sample.driver.as_ref().map_or("", |driver| &driver.text)
}
