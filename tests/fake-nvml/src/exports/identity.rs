//! What a GPU is.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_t, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlEnableState_t, nvmlPciInfo_t,
};

use super::export;
use crate::ErrorCode;
use crate::bus_id::BusId;
use crate::out::Out;

export! {
    /// As `NVIDIA H100 NVL`.
    fn nvmlDeviceGetName(|call| device: nvmlDevice_t, name: Out<c_char>, length: c_uint) {
        let target = call.device(device)?;
        name.put_text(length, target.mig().map_or(&target.gpu().name, |mig| &mig.name))
    }

    /// `GPU-…` or `MIG-…`.
    fn nvmlDeviceGetUUID(|call| device: nvmlDevice_t, uuid: Out<c_char>, length: c_uint) {
        let target = call.device(device)?;
        uuid.put_text(length, target.mig().map_or(&target.gpu().uuid, |mig| &mig.uuid))
    }

    /// The place in NVML's order; a MIG instance's, among those of its GPU.
    fn nvmlDeviceGetIndex(|call| device: nvmlDevice_t, index: Out<c_uint>) {
        let target = call.device(device)?;
        index.put(target.instance.unwrap_or(target.index) as c_uint)
    }

    /// The number of the device's file.
    fn nvmlDeviceGetMinorNumber(|call| device: nvmlDevice_t, minor: Out<c_uint>) {
        minor.put(call.whole_gpu(device)?.gpu().minor.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }

    /// Of the board.
    fn nvmlDeviceGetSerial(|call| device: nvmlDevice_t, serial: Out<c_char>, length: c_uint) {
        let target = call.whole_gpu(device)?;
        serial.put_text(length, target.gpu().serial.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?)
    }

    /// What it is sold as.
    fn nvmlDeviceGetBrand(|call| device: nvmlDevice_t, brand: Out<nvmlBrandType_t>) {
        brand.put(call.whole_gpu(device)?.gpu().brand.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }

    /// Its generation.
    fn nvmlDeviceGetArchitecture(|call| device: nvmlDevice_t, architecture: Out<nvmlDeviceArchitecture_t>) {
        architecture.put(call.whole_gpu(device)?.gpu().architecture.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }

    /// What programs can be compiled for.
    fn nvmlDeviceGetCudaComputeCapability(|call| device: nvmlDevice_t, major: Out<c_int>, minor: Out<c_int>) {
        let target = call.whole_gpu(device)?;
        let capability = target.gpu().compute_capability.ok_or(ErrorCode::NOT_SUPPORTED)?;
        major.put(capability.0)?;
        minor.put(capability.1)
    }

    /// Where it sits.
    fn nvmlDeviceGetPciInfo_v3(|call| device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) {
        let target = call.whole_gpu(device)?;
        let gpu = target.gpu();
        let place = BusId::parse(&gpu.pci_bus_id).ok_or(ErrorCode::UNKNOWN)?;
        pci.put(nvmlPciInfo_t {
            busIdLegacy: chars(&place.legacy()),
            domain: place.domain,
            bus: place.bus,
            device: place.device,
            pciDeviceId: gpu.pci_device_id,
            pciSubSystemId: gpu.pci_subsystem_id,
            busId: chars(&place.long()),
        })
    }

    /// Whether the driver stays loaded.
    fn nvmlDeviceGetPersistenceMode(|call| device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        mode.put(call.whole_gpu(device)?.gpu().persistence.ok_or(ErrorCode::NOT_SUPPORTED)?.into())
    }

    /// The node of memory that it hangs on.
    fn nvmlDeviceGetNumaNodeId(|call| device: nvmlDevice_t, node: Out<c_uint>) {
        node.put(call.whole_gpu(device)?.gpu().numa_node.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }
}

/// A text and its end, cut to fit.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (place, byte) in chars[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    chars
}
