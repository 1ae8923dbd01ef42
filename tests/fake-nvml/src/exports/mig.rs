//! GPUs that are cut into slices.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t};

use super::export;
use crate::ErrorCode;
use crate::handles::DeviceKey;
use crate::out::Out;

export! {
    /// Whether it is on, and will be.
    fn nvmlDeviceGetMigMode(|call| device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        let mig = target.gpu().mig.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?;
        current.put(mig.enabled.into())?;
        pending.put(mig.pending.unwrap_or(mig.enabled).into())
    }

    /// How many there may be; none without MIG.
    fn nvmlDeviceGetMaxMigDeviceCount(|call| device: nvmlDevice_t, count: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        let mig = target.gpu().mig.as_ref().filter(|mig| mig.enabled);
        count.put(mig.map_or(0, |mig| mig.max_devices))
    }

    /// One of those that are.
    fn nvmlDeviceGetMigDeviceHandleByIndex(|call| device: nvmlDevice_t, index: c_uint, instance: Out<nvmlDevice_t>) {
        let target = call.whole_gpu(device)?;
        let gpu = target.gpu();
        let mig = gpu.mig.as_ref().filter(|mig| mig.enabled).ok_or(ErrorCode::NOT_SUPPORTED)?;
        if index >= mig.max_devices {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        let found = gpu.instances().get(index as usize).ok_or(ErrorCode::NOT_FOUND)?;
        instance.put(crate::state::state().handles.hand_out(DeviceKey::of_instance(found)))
    }

    /// The GPU that an instance is part of.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(|call| instance: nvmlDevice_t, device: Out<nvmlDevice_t>) {
        let target = call.device(instance)?;
        target.mig().ok_or(ErrorCode::INVALID_ARGUMENT)?;
        device.put(crate::state::state().handles.hand_out(DeviceKey::of(target.gpu())))
    }

    /// Whether a handle is a MIG instance's.
    fn nvmlDeviceIsMigDeviceHandle(|call| device: nvmlDevice_t, is_instance: Out<c_uint>) {
        is_instance.put(call.device(device)?.mig().is_some().into())
    }

    /// Of a MIG instance.
    fn nvmlDeviceGetGpuInstanceId(|call| device: nvmlDevice_t, id: Out<c_uint>) {
        id.put(call.device(device)?.mig().ok_or(ErrorCode::NOT_SUPPORTED)?.gi)
    }

    /// Of a MIG instance.
    fn nvmlDeviceGetComputeInstanceId(|call| device: nvmlDevice_t, id: Out<c_uint>) {
        id.put(call.device(device)?.mig().ok_or(ErrorCode::NOT_SUPPORTED)?.ci)
    }

    /// What a MIG instance has; not for a whole GPU.
    fn nvmlDeviceGetAttributes_v2(|call| device: nvmlDevice_t, attributes: Out<nvmlDeviceAttributes_t>) {
        let target = call.device(device)?;
        let mig = target.mig().ok_or(ErrorCode::NOT_SUPPORTED)?;
        attributes.put(nvmlDeviceAttributes_t {
            multiprocessorCount: mig.multiprocessors,
            sharedCopyEngineCount: 1,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: mig.gpu_slices,
            computeInstanceSliceCount: mig.compute_slices,
            memorySizeMB: target.long(&mig.memory.total)? >> 20,
        })
    }
}
