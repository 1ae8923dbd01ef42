//! MIG instances of a card.
#![allow(unsafe_code)] // the ids of an instance, which nvml-wrapper has no call for

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use slurm_serve_proto::v1;

use super::calls::Calls;

/// All of them. One that vanishes meanwhile is left out.
pub fn instances(device: &Device<'_>, card: u32, calls: &mut Calls) -> Vec<v1::MigInstance> {
    let most = calls.ask(card, "nvmlDeviceGetMaxMigDeviceCount", || {
        device.mig_device_count()
    });
    let mut found = Vec::new();
    for index in 0..most.unwrap_or(0) {
        // NOT_FOUND where there is none: that is not for ever.
        let Ok(instance) = calls.run(card, "nvmlDeviceGetMigDeviceHandleByIndex", || {
            device.mig_device_by_index(index)
        }) else {
            continue;
        };
        let Ok(uuid) = calls.run(card, "nvmlDeviceGetUUID", || instance.uuid()) else {
            continue;
        };
        let memory = calls
            .run(card, "nvmlDeviceGetMemoryInfo", || instance.memory_info())
            .ok();
        found.push(v1::MigInstance {
            uuid,
            gpu_instance: calls
                .run(card, "nvmlDeviceGetGpuInstanceId", || gpu_instance(&instance))
                .ok(),
            compute_instance: calls
                .run(card, "nvmlDeviceGetComputeInstanceId", || {
                    compute_instance(&instance)
                })
                .ok(),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total),
            memory_used_bytes: memory.map(|memory| memory.used),
        });
    }
    found
}

fn gpu_instance(instance: &Device<'_>) -> Result<u32, NvmlError> {
    let call = instance
        .nvml()
        .lib()
        .nvmlDeviceGetGpuInstanceId
        .as_ref()
        .map_err(|e| NvmlError::FailedToLoadSymbol(e.to_string()))?;
    let mut id = 0;
    // SAFETY: the handle is of a device whose library `instance` borrows; `id` is written to before the call returns.
    nvml_try(unsafe { call(instance.handle(), &raw mut id) })?;
    Ok(id)
}

fn compute_instance(instance: &Device<'_>) -> Result<u32, NvmlError> {
    let call = instance
        .nvml()
        .lib()
        .nvmlDeviceGetComputeInstanceId
        .as_ref()
        .map_err(|e| NvmlError::FailedToLoadSymbol(e.to_string()))?;
    let mut id = 0;
    // SAFETY: the handle is of a device whose library `instance` borrows; `id` is written to before the call returns.
    nvml_try(unsafe { call(instance.handle(), &raw mut id) })?;
    Ok(id)
}
