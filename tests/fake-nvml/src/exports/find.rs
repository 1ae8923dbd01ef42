//! The ways to a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::export;
use crate::ErrorCode;
use crate::bus_id::BusId;
use crate::handles::DeviceKey;
use crate::out::{Out, Text};

export! {
    /// How many GPUs there are, lost ones too.
    fn nvmlDeviceGetCount_v2(|call| count: Out<c_uint>) {
        count.put(call.scenario.gpus.len() as c_uint)
    }

    /// By its place in NVML's order.
    fn nvmlDeviceGetHandleByIndex_v2(|call| index: c_uint, device: Out<nvmlDevice_t>) {
        let gpu = call.scenario.gpus.get(index as usize).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        device.put(call.hand_out(DeviceKey::of(gpu))?)
    }

    /// By its UUID; a MIG instance too.
    fn nvmlDeviceGetHandleByUUID(|call| uuid: Text, device: Out<nvmlDevice_t>) {
        let key = DeviceKey { uuid: uuid.read()? };
        key.find(&call.scenario).ok_or(ErrorCode::NOT_FOUND)?;
        device.put(call.hand_out(key)?)
    }

    /// By its place on the bus.
    fn nvmlDeviceGetHandleByPciBusId_v2(|call| bus_id: Text, device: Out<nvmlDevice_t>) {
        let place = BusId::parse(&bus_id.read()?).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        let mut gpus = call.scenario.gpus.iter();
        let gpu = gpus.find(|gpu| BusId::parse(&gpu.pci_bus_id) == Some(place));
        device.put(call.hand_out(DeviceKey::of(gpu.ok_or(ErrorCode::NOT_FOUND)?))?)
    }
}
