//! A stand-in for NVIDIA's management library (`libnvidia-ml.so.1`), for tests of what reads GPUs on machines without any.
//!
//! What it says comes from a [`Scenario`], a JSON file: the one that `FAKE_NVML_SCENARIO` names, else `scenario.json` beside the library. The
//! file is read again whenever it changes, so a test steers a running program by [`Scenario::write`], which replaces it at once. A file
//! that is broken or gone changes nothing: the last good one goes on. Only `nvmlInit` minds that there is no file: the driver is not loaded.
//!
//! ```no_run
//! use fake_nvml::{Gpu, Scenario, Value};
//!
//! let mut gpu = Gpu::h100_nvl(0);
//! gpu.utilization.gpu = Some(Value::steps([(0.0, 5.0), (2.0, 98.0)]));
//! let scenario = Scenario::with_gpus([gpu]);
//! // A folder of its own gives a test a library of its own: one process may have several open.
//! let library = fake_nvml::install(std::path::Path::new("/tmp/of-one-test"), &scenario)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A function that isn't in [`FUNCTIONS`] doesn't exist here, as in a library that is too old for it.

mod bus_id;
mod call;
mod calls;
mod error_code;
mod events;
mod exports;
mod faults;
mod field;
mod file;
mod functions;
mod gpm;
mod gpu;
mod handles;
mod install;
mod location;
mod mig;
mod out;
mod readings;
mod samples;
mod scenario;
mod state;
mod value;

pub use error_code::ErrorCode;
pub use functions::{ALL, FUNCTIONS};
pub use gpm::Gpm;
pub use gpu::{Gpu, Process, ProcessKind, Xid};
pub use install::{SCENARIO_FILE, install, library};
pub use mig::{Mig, MigInstance};
pub use readings::{
    Clocks, Ecc, EccCounters, EccErrors, Memory, Pcie, Power, RemappedRows, Temperature, Utilization,
    Violations,
};
pub use scenario::Scenario;
pub use value::Value;
