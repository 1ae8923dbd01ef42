//! What each call into the driver costs, and which one is under way: a call may never come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use slurm_serve_proto::v1;

/// The call under way: its name, the card's index, and since when. Looked at by the watchdog.
pub type UnderWay = Arc<Mutex<Option<(&'static str, u32, Instant)>>>;

/// Makes calls, measures them, and remembers which ones a card does not know.
#[derive(Debug, Default)]
pub struct Calls {
    under_way: UnderWay,
    costs: BTreeMap<&'static str, Cost>,
    unknown: BTreeSet<(u32, &'static str)>,
    /// What goes wrong with a card, or with all: the last error that says so.
    trouble: Option<NvmlError>,
    is_lost: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    count: u64,
    errors: u64,
    sum: Duration,
    longest: Duration,
}

impl Calls {
    /// For the watchdog.
    pub fn under_way(&self) -> UnderWay {
        self.under_way.clone()
    }

    /// Calls `function` of the card with that index. `None`: it does not give that value, which is asked no more where that will stay so.
    pub fn ask<T>(
        &mut self,
        card: u32,
        function: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Option<T> {
        if self.unknown.contains(&(card, function)) {
            return None;
        }
        match self.run(card, function, call) {
            Ok(value) => Some(value),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::NotFound) => {
                self.unknown.insert((card, function));
                None
            }
            Err(NvmlError::GpuLost) => {
                self.is_lost = true;
                None
            }
            Err(error) => {
                if matches!(error, NvmlError::NoPermission) {
                    self.unknown.insert((card, function));
                }
                self.trouble = Some(error);
                None
            }
        }
    }

    /// The same, with the error.
    pub fn run<T>(
        &mut self,
        card: u32,
        function: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        let start = Instant::now();
        self.set(Some((function, card, start)));
        let answer = call();
        self.set(None);
        let took = start.elapsed();
        let cost = self.costs.entry(function).or_default();
        cost.count += 1;
        // A wait that ends without an event is none.
        cost.errors += u64::from(matches!(&answer, Err(e) if !matches!(e, NvmlError::Timeout)));
        cost.sum += took;
        cost.longest = cost.longest.max(took);
        answer
    }

    fn set(&self, call: Option<(&'static str, u32, Instant)>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }

    /// Whether the card asked since the last call of this was lost.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    /// What went wrong since the last call of this.
    pub fn take_trouble(&mut self) -> Option<NvmlError> {
        self.trouble.take()
    }

    /// All of them, as they are told.
    pub fn told(&self) -> Vec<v1::DriverCall> {
        let told = |(function, cost): (&&'static str, &Cost)| v1::DriverCall {
            function: (*function).to_owned(),
            count: cost.count,
            errors: cost.errors,
            seconds: cost.sum.as_secs_f64(),
            longest_seconds: cost.longest.as_secs_f64(),
        };
        self.costs.iter().map(told).collect()
    }
}
