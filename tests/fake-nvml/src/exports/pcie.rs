//! The link to the host.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES as RECEIVED,
    nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES as SENT, nvmlPcieUtilCounter_t,
};

use super::{export, export_readings};
use crate::ErrorCode;
use crate::out::Out;

export_readings! {
    /// Packets that had to be sent again.
    fn nvmlDeviceGetPcieReplayCounter -> c_uint: short(|gpu| &gpu.pcie.replays);

    /// Lanes.
    fn nvmlDeviceGetCurrPcieLinkWidth -> c_uint: short(|gpu| &gpu.pcie.width);

    /// The generation; lower at rest.
    fn nvmlDeviceGetCurrPcieLinkGeneration -> c_uint: short(|gpu| &gpu.pcie.generation);

    /// Lanes that both ends have.
    fn nvmlDeviceGetMaxPcieLinkWidth -> c_uint: short(|gpu| &gpu.pcie.max_width);

    /// The generation that both ends can.
    fn nvmlDeviceGetMaxPcieLinkGeneration -> c_uint: short(|gpu| &gpu.pcie.max_generation);
}

export! {
    /// In KB each second. The real one measures for 20 ms first: a scenario's delay can do so too.
    fn nvmlDeviceGetPcieThroughput(|call| device: nvmlDevice_t, counter: nvmlPcieUtilCounter_t, kb: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        let pcie = &target.gpu().pcie;
        kb.put(target.short(match counter {
            SENT => &pcie.tx_kb_s,
            RECEIVED => &pcie.rx_kb_s,
            _ => return Err(ErrorCode::INVALID_ARGUMENT),
        })?)
    }
}
