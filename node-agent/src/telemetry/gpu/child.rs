//! The process that talks to the driver. A call that hangs, a library that crashes, a handle that keeps a GPU from being reset: all of it is here
//! and ends with this process, which the agent can do without.
//!
//! ```text
//! load the library ──▶ open each card ──▶ a frame to stdout at each tick ──▶ …      and a watchdog thread, which says so when a call hangs
//!        └──▶ a frame that says why not, exit code ABSENT or FAILED                  nobody reads: the process ends
//! ```

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use prost::Message;
use slurm_serve_proto::v1;

use super::calls::{Calls, UnderWay};
use super::read::Card;
use super::xids::Xids;
use crate::telemetry::own;

/// There is no driver or no GPU.
pub const ABSENT: u8 = 3;
/// There is one, and it can't be used.
pub const FAILED: u8 = 4;
/// What is there has changed: begin anew.
pub const CHANGED: u8 = 5;

/// What `slurm-serve gpus` takes.
#[derive(Debug, clap::Args)]
pub struct ChildArgs {
    /// Milliseconds between two samples.
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// Milliseconds after which a call is said to hang.
    #[arg(long, default_value_t = 5000)]
    hang_after_ms: u64,
    /// NVIDIA's library; libnvidia-ml.so.1 where it is not given.
    #[arg(long)]
    library: Option<PathBuf>,
}

/// Frames go through one door: two threads write.
#[derive(Debug, Clone)]
struct Out(Arc<Mutex<std::io::Stdout>>);

impl Out {
    /// Its length in four bytes, then itself. Nobody reads any more: the process has no use.
    fn send(&self, frame: &v1::NodeSample) {
        let body = frame.encode_to_vec();
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let bytes = [length.to_be_bytes().as_slice(), &body].concat();
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }

    fn send_driver(&self, state: v1::DriverState, text: String) {
        self.send(&v1::NodeSample {
            driver: Some(v1::Driver {
                state: state.into(),
                text,
                ..v1::Driver::default()
            }),
            ..v1::NodeSample::default()
        });
    }
}

/// Runs until nobody reads, or until there is nothing to be read from.
pub fn main(args: &ChildArgs) -> ExitCode {
    let out = Out(Arc::new(Mutex::new(std::io::stdout())));
    let mut calls = Calls::default();
    watchdog(
        out.clone(),
        calls.under_way(),
        Duration::from_millis(args.hang_after_ms),
    );
    let (code, state, text) = match serve(args, &out, &mut calls) {
        Ended::Changed(text) => (CHANGED, v1::DriverState::Failed, text),
        Ended::No(error) => {
            let (code, state) = match error {
                NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded | NvmlError::NotFound => {
                    (ABSENT, v1::DriverState::Absent)
                }
                _ => (FAILED, v1::DriverState::Failed),
            };
            (code, state, explain(&error))
        }
    };
    out.send_driver(state, text);
    ExitCode::from(code)
}

enum Ended {
    No(NvmlError),
    Changed(String),
}

impl From<NvmlError> for Ended {
    fn from(error: NvmlError) -> Self {
        Self::No(error)
    }
}

fn serve(args: &ChildArgs, out: &Out, calls: &mut Calls) -> Ended {
    match sample(args, out, calls) {
        Ok(ended) | Err(ended) => ended,
    }
}

fn sample(args: &ChildArgs, out: &Out, calls: &mut Calls) -> Result<Ended, Ended> {
    let library = args.library.as_deref().map(AsRef::<OsStr>::as_ref);
    let nvml = calls.run(0, "nvmlInit", || match library {
        Some(path) => Nvml::builder().lib_path(path).init(),
        None => Nvml::init(),
    })?;
    let count = calls.run(0, "nvmlDeviceGetCount", || nvml.device_count())?;
    if count == 0 {
        return Err(Ended::No(NvmlError::NotFound));
    }
    let mut driver = v1::Driver {
        state: v1::DriverState::Ok.into(),
        version: nvml.sys_driver_version().unwrap_or_default(),
        cuda_version: nvml
            .sys_cuda_driver_version()
            .map(|number| format!("{}.{}", number / 1000, number % 1000 / 10))
            .unwrap_or_default(),
        ..v1::Driver::default()
    };
    let (mut cards, mut missing) = (Vec::new(), Vec::new());
    for index in 0..count {
        match Card::open(&nvml, index, calls) {
            Ok(card) => cards.push(card),
            Err(error) => missing.push(format!("GPU {index}: {error}")),
        }
    }
    let xids = Xids::listen(&nvml, &cards, calls);
    let interval = Duration::from_millis(args.interval_ms.max(10));
    let (mut next, mut tick) = (Instant::now(), 0_u64);
    loop {
        let start = Instant::now();
        let mut gpus: Vec<v1::Gpu> = cards.iter_mut().map(|card| card.read(tick, calls)).collect();
        let news = xids.news(calls);
        for gpu in &mut gpus {
            gpu.xids = news.get(&gpu.uuid).cloned().unwrap_or_default();
        }
        let took = start.elapsed();
        driver.text = match calls.take_trouble() {
            Some(error) => explain(&error),
            None => missing.join("; "),
        };
        let (reader_resident_bytes, reader_cpu_seconds) = own::cost();
        out.send(&v1::NodeSample {
            sequence: tick,
            driver: Some(driver.clone()),
            gpus,
            self_: Some(v1::SelfTelemetry {
                sample_seconds: took.as_secs_f64(),
                calls: calls.told(),
                reader_resident_bytes,
                reader_cpu_seconds,
                ..v1::SelfTelemetry::default()
            }),
            ..v1::NodeSample::default()
        });
        tick += 1;
        // A driver that was loaded anew, a GPU that came, went, or was reset.
        if tick.is_multiple_of(AGAIN) {
            let there = calls.run(0, "nvmlDeviceGetCount", || nvml.device_count())?;
            if there != count {
                return Ok(Ended::Changed(format!("{there} GPUs, {count} before")));
            }
            if cards.iter().any(Card::is_lost) {
                return Ok(Ended::Changed("a GPU is lost; is it back?".into()));
            }
        }
        next += interval;
        let now = Instant::now();
        // Samples that are late are left out, not caught up with.
        while next <= now {
            next += interval;
        }
        std::thread::sleep(next - now);
    }
}

/// Samples between two looks whether all cards are still there.
const AGAIN: u64 = 30;

/// One line, and what to do where that is known.
fn explain(error: &NvmlError) -> String {
    let what = match error {
        NvmlError::LibloadingError(_) => "NVIDIA's library is not here".into(),
        NvmlError::NotFound => "the driver knows no GPU".into(),
        NvmlError::LibRmVersionMismatch => {
            "driver and library are of different versions, as after an update: reload the driver or reboot"
                .into()
        }
        NvmlError::NoPermission => "the driver refuses: it asks for other permissions".into(),
        other => format!("NVML: {other}"),
    };
    match error {
        NvmlError::LibloadingError(error) => {
            let text = format!("{what}: {error}");
            text.replace('\n', " ")
        }
        _ => what,
    }
}

/// How often the watchdog looks.
pub const LOOK: Duration = Duration::from_secs(1);

/// Says each second which call hangs, for as long as it does.
fn watchdog(out: Out, under_way: UnderWay, hang_after: Duration) {
    let look = move || {
        loop {
            std::thread::sleep(LOOK.min(hang_after));
            let call = *under_way.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((function, card, since)) = call
                && since.elapsed() >= hang_after
            {
                let text = format!(
                    "{function} of GPU {card} has not come back for {} s",
                    since.elapsed().as_secs()
                );
                out.send_driver(v1::DriverState::Hung, text);
            }
        }
    };
    if let Err(e) = std::thread::Builder::new().name("watchdog".into()).spawn(look) {
        eprintln!("slurm-serve: no watchdog: {e}");
    }
}

/// Xids by card and number.
pub type News = HashMap<String, HashMap<u32, u64>>;
