//! Who is on a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{NVML_VALUE_NOT_AVAILABLE, nvmlDevice_t, nvmlProcessInfo_t};

use super::export;
use crate::call::{Answer, Target};
use crate::out::Out;
use crate::{ErrorCode, Process, ProcessKind};

/// The instance of a process without MIG.
const NO_INSTANCE: u32 = u32::MAX;

export! {
    /// Those that compute.
    fn nvmlDeviceGetComputeRunningProcesses_v3(|call|
        device: nvmlDevice_t, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>)
    {
        list(&call.device(device)?, ProcessKind::Compute, count, processes)
    }

    /// Those that draw.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(|call|
        device: nvmlDevice_t, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>)
    {
        list(&call.device(device)?, ProcessKind::Graphics, count, processes)
    }

    /// Those that compute by way of MPS.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(|call|
        device: nvmlDevice_t, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>)
    {
        list(&call.device(device)?, ProcessKind::Mps, count, processes)
    }
}

/// With too little room the caller learns how much it takes; that is how one asks for the number alone.
fn list(target: &Target, kind: ProcessKind, count: Out<c_uint>, processes: Out<nvmlProcessInfo_t>) -> Answer {
    let of_instance = |process: &&Process| {
        target
            .mig()
            .is_none_or(|mig| process.gi == Some(mig.gi) && process.ci.is_none_or(|ci| ci == mig.ci))
    };
    let listed: Vec<_> = target
        .gpu()
        .processes
        .iter()
        .filter(|process| process.kind == kind)
        .filter(of_instance)
        .map(|process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.used_bytes.unwrap_or(NVML_VALUE_NOT_AVAILABLE as u64),
            gpuInstanceId: process.gi.unwrap_or(NO_INSTANCE),
            computeInstanceId: process.ci.unwrap_or(NO_INSTANCE),
        })
        .collect();
    let number = listed.len() as c_uint;
    let room = count.edit(|count| std::mem::replace(count, number))?;
    if number > room {
        return Err(ErrorCode::INSUFFICIENT_SIZE);
    }
    if number == 0 {
        return Ok(());
    }
    processes.put_all(&mut listed.into_iter())
}
