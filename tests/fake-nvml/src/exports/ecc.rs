//! Error correction.

use std::ffi::c_ulonglong;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccCounterType_enum_NVML_AGGREGATE_ECC as AGGREGATE,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC as VOLATILE, nvmlEccCounterType_t, nvmlEnableState_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED, nvmlMemoryErrorType_t,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT as LOCATIONS,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY as DRAM,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM as SRAM, nvmlMemoryLocation_t,
};

use super::export;
use crate::call::{Answer, Target};
use crate::out::Out;
use crate::{EccErrors, ErrorCode};

export! {
    /// Whether it is on, and will be.
    fn nvmlDeviceGetEccMode(|call|
        device: nvmlDevice_t, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>)
    {
        let target = call.whole_gpu(device)?;
        let ecc = &target.gpu().ecc;
        let enabled = ecc.enabled.ok_or(ErrorCode::NOT_SUPPORTED)?;
        current.put(enabled.into())?;
        pending.put(ecc.pending.unwrap_or(enabled).into())
    }

    /// Of the whole GPU.
    fn nvmlDeviceGetTotalEccErrors(|call|
        device: nvmlDevice_t, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, count: Out<c_ulonglong>)
    {
        let target = call.whole_gpu(device)?;
        count.put(errors(&target, &target.gpu().ecc.total, kind, counter)?)
    }

    /// Of one place.
    fn nvmlDeviceGetMemoryErrorCounter(|call|
        device: nvmlDevice_t, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t,
        location: nvmlMemoryLocation_t, count: Out<c_ulonglong>)
    {
        let target = call.whole_gpu(device)?;
        let place = match location {
            DRAM => &target.gpu().ecc.dram,
            SRAM => &target.gpu().ecc.sram,
            LOCATIONS.. => return Err(ErrorCode::INVALID_ARGUMENT),
            _ => return Err(ErrorCode::NOT_SUPPORTED),
        };
        count.put(errors(&target, place, kind, counter)?)
    }
}

fn errors(
    target: &Target,
    place: &EccErrors,
    kind: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
) -> Answer<u64> {
    let counters = match kind {
        CORRECTED => &place.corrected,
        UNCORRECTED => &place.uncorrected,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    };
    target.long(match counter {
        VOLATILE => &counters.volatile,
        AGGREGATE => &counters.aggregate,
        _ => return Err(ErrorCode::INVALID_ARGUMENT),
    })
}
