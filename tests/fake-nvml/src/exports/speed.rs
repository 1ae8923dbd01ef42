//! How busy and how fast, and what holds it back.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlClockType_enum_NVML_CLOCK_GRAPHICS as GRAPHICS, nvmlClockType_enum_NVML_CLOCK_MEM as MEMORY,
    nvmlClockType_enum_NVML_CLOCK_SM as SM, nvmlClockType_enum_NVML_CLOCK_VIDEO as VIDEO, nvmlClockType_t,
    nvmlDevice_t, nvmlPerfPolicyType_enum_NVML_PERF_POLICY_BOARD_LIMIT as BOARD_LIMIT,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_LOW_UTILIZATION as LOW_UTILIZATION,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_POWER as POWER,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_RELIABILITY as RELIABILITY,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_SYNC_BOOST as SYNC_BOOST,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL as THERMAL,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_TOTAL_APP_CLOCKS as TOTAL_APP_CLOCKS,
    nvmlPerfPolicyType_enum_NVML_PERF_POLICY_TOTAL_BASE_CLOCKS as TOTAL_BASE_CLOCKS, nvmlPerfPolicyType_t,
    nvmlUtilization_t, nvmlViolationTime_t,
};

use super::{export, export_readings};
use crate::call::Answer;
use crate::out::Out;
use crate::{Clocks, ErrorCode, Value};

export_readings! {
    /// A mask of what holds the clocks back now.
    fn nvmlDeviceGetCurrentClocksThrottleReasons -> c_ulonglong: long(|gpu| &gpu.clock_events);

    /// A mask of what the GPU would tell of.
    fn nvmlDeviceGetSupportedClocksThrottleReasons -> c_ulonglong: long(|gpu| &gpu.supported_clock_events);
}

export! {
    /// In percent of the driver's last period. With MIG the driver has no answer.
    fn nvmlDeviceGetUtilizationRates(|call| device: nvmlDevice_t, rates: Out<nvmlUtilization_t>) {
        let target = call.whole_gpu(device)?;
        let gpu = target.gpu();
        if gpu.mig.as_ref().is_some_and(|mig| mig.enabled) {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        rates.put(nvmlUtilization_t {
            gpu: target.short(&gpu.utilization.gpu)?,
            memory: target.short(&gpu.utilization.memory)?,
        })
    }

    /// Of now.
    fn nvmlDeviceGetClockInfo(|call| device: nvmlDevice_t, domain: nvmlClockType_t, mhz: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        mhz.put(target.short(clock(&target.gpu().clocks, domain)?)?)
    }

    /// The highest.
    fn nvmlDeviceGetMaxClockInfo(|call| device: nvmlDevice_t, domain: nvmlClockType_t, mhz: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        mhz.put(target.short(clock(&target.gpu().max_clocks, domain)?)?)
    }

    /// How long the clocks were held back by one reason: the reference in microseconds, the time in nanoseconds.
    fn nvmlDeviceGetViolationStatus(|call|
        device: nvmlDevice_t, policy: nvmlPerfPolicyType_t, time: Out<nvmlViolationTime_t>)
    {
        let target = call.whole_gpu(device)?;
        let violations = &target.gpu().violations;
        let value = match policy {
            POWER => &violations.power,
            THERMAL => &violations.thermal,
            SYNC_BOOST => &violations.sync_boost,
            BOARD_LIMIT => &violations.board_limit,
            LOW_UTILIZATION => &violations.low_utilization,
            RELIABILITY => &violations.reliability,
            TOTAL_APP_CLOCKS => &violations.total_app_clocks,
            TOTAL_BASE_CLOCKS => &violations.total_base_clocks,
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        time.put(nvmlViolationTime_t {
            referenceTime: since.as_micros() as c_ulonglong,
            violationTime: target.long(value)?,
        })
    }
}

fn clock(clocks: &Clocks, domain: nvmlClockType_t) -> Answer<&Option<Value>> {
    match domain {
        GRAPHICS => Ok(&clocks.graphics),
        SM => Ok(&clocks.sm),
        MEMORY => Ok(&clocks.memory),
        VIDEO => Ok(&clocks.video),
        _ => Err(ErrorCode::INVALID_ARGUMENT),
    }
}
