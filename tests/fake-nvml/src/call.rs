//! What every call goes through before it is answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t};

use crate::faults::Faults;
use crate::handles::DeviceKey;
use crate::state::state;
use crate::{ErrorCode, Gpu, MigInstance, Scenario, Value};

/// How often a call that waits looks whether it may go on.
pub const POLL: Duration = Duration::from_millis(10);

/// What a function answers.
pub type Answer<T = ()> = Result<T, ErrorCode>;

/// Answers a call of an initialised library, as the scenario wishes.
pub fn answer(function: &'static str, body: impl FnOnce(&Call) -> Answer) -> nvmlReturn_t {
    guarded(|| {
        let mut state = state();
        state.count(function);
        if !state.is_started() {
            return Err(ErrorCode::UNINITIALIZED);
        }
        drop(state);
        let scenario = pass(function, |scenario| Some(scenario.faults()))?;
        body(&Call { function, scenario })
    })
}

/// Answers `nvmlInit`.
pub fn init(function: &'static str) -> nvmlReturn_t {
    guarded(|| {
        let mut state = state();
        state.count(function);
        if !state.has_driver() {
            return Err(ErrorCode::DRIVER_NOT_LOADED);
        }
        drop(state);
        let scenario = pass(function, |scenario| Some(scenario.faults()))?;
        match scenario.init_error {
            Some(error) => Err(error),
            None => {
                crate::state::state().start();
                Ok(())
            }
        }
    })
}

/// Lets no panic out: who calls is in C.
fn guarded(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nvmlReturn_enum_NVML_SUCCESS,
        Ok(Err(error)) => error.0,
        Err(_) => ErrorCode::UNKNOWN.0,
    }
}

/// Holds the call for as long as the scenario wishes and fails it if it wishes that; gives the scenario that let it go.
fn pass(function: &str, faults: impl Fn(&Scenario) -> Option<Faults<'_>>) -> Answer<Arc<Scenario>> {
    loop {
        let scenario = state().scenario()?;
        let Some(faults) = faults(&scenario) else {
            return Ok(scenario);
        };
        if faults.hangs(function) {
            std::thread::sleep(POLL);
            continue;
        }
        std::thread::sleep(faults.delay(function));
        return match faults.error(function) {
            Some(error) => Err(error),
            None => Ok(scenario),
        };
    }
}

/// A call that the library as a whole has let through.
pub struct Call {
    pub function: &'static str,
    pub scenario: Arc<Scenario>,
}

impl Call {
    /// The GPU or MIG instance that a handle stands for.
    pub fn device(&self, handle: nvmlDevice_t) -> Answer<Target> {
        let key = state().handles.get(handle).cloned();
        self.target(&key.ok_or(ErrorCode::INVALID_ARGUMENT)?)
    }

    /// The GPU that a handle stands for; what is asked makes no sense for a MIG instance.
    pub fn whole_gpu(&self, handle: nvmlDevice_t) -> Answer<Target> {
        let target = self.device(handle)?;
        match target.instance {
            None => Ok(target),
            Some(_) => Err(ErrorCode::NOT_SUPPORTED),
        }
    }

    /// The device of that name, if its GPU lets the call through.
    pub fn target(&self, key: &DeviceKey) -> Answer<Target> {
        let gpu_of = |scenario: &Scenario| key.find(scenario).map(|(gpu, _)| gpu);
        let scenario = pass(self.function, |scenario| {
            gpu_of(scenario).map(|gpu| scenario.gpus[gpu].faults())
        })?;
        // What is no longer there was lost.
        let (gpu, instance) = key.find(&scenario).ok_or(ErrorCode::GPU_IS_LOST)?;
        if scenario.gpus[gpu].lost {
            return Err(ErrorCode::GPU_IS_LOST);
        }
        let now = state().now(&scenario);
        Ok(Target {
            scenario,
            index: gpu,
            instance,
            now,
        })
    }

    /// A handle for a device, if its GPU lets the call through.
    pub fn hand_out(&self, key: DeviceKey) -> Answer<nvmlDevice_t> {
        self.target(&key)?;
        Ok(state().handles.hand_out(key))
    }
}

/// A device of the scenario, at a moment.
pub struct Target {
    scenario: Arc<Scenario>,
    /// The GPU's.
    pub index: usize,
    /// The MIG instance's, if it is one.
    pub instance: Option<usize>,
    /// The scenario's time.
    pub now: f64,
}

impl Target {
    /// The GPU, or the one that the MIG instance is part of.
    pub fn gpu(&self) -> &Gpu {
        &self.scenario.gpus[self.index]
    }

    /// The MIG instance.
    pub fn mig(&self) -> Option<&MigInstance> {
        self.gpu().instances().get(self.instance?)
    }

    /// A reading.
    pub fn value(&self, value: &Option<Value>) -> Answer<f64> {
        let now = value.as_ref().and_then(|value| value.at(self.now));
        now.ok_or(ErrorCode::NOT_SUPPORTED)
    }

    /// A reading, as a whole number.
    pub fn long(&self, value: &Option<Value>) -> Answer<u64> {
        Ok(self.value(value)?.round() as u64)
    }

    /// A reading, as a whole number of 32 bits.
    pub fn short(&self, value: &Option<Value>) -> Answer<u32> {
        Ok(self.value(value)?.round() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_unknown_error() {
        assert_eq!(guarded(|| panic!("on purpose")), ErrorCode::UNKNOWN.0);
        assert_eq!(guarded(|| Err(ErrorCode::TIMEOUT)), 10);
        assert_eq!(guarded(|| Ok(())), 0);
    }

    #[test]
    fn nothing_is_answered_before_init() {
        assert_eq!(
            answer("nvmlDeviceGetCount_v2", |_| Ok(())),
            ErrorCode::UNINITIALIZED.0
        );
    }
}
