//! Memory, of a GPU or of a MIG instance.

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};

use super::export;
use crate::ErrorCode;
use crate::call::{Answer, Target};
use crate::out::Out;

export! {
    /// The old call, to which what the driver keeps for itself is in use.
    fn nvmlDeviceGetMemoryInfo(|call| device: nvmlDevice_t, memory: Out<nvmlMemory_t>) {
        let bytes = Bytes::of(&call.device(device)?)?;
        memory.put(nvmlMemory_t {
            total: bytes.total,
            free: bytes.free,
            used: bytes.used + bytes.reserved,
        })
    }

    /// The new one, that wants its version said.
    fn nvmlDeviceGetMemoryInfo_v2(|call| device: nvmlDevice_t, memory: Out<nvmlMemory_v2_t>) {
        let bytes = Bytes::of(&call.device(device)?)?;
        memory.edit(|memory| {
            let size = size_of::<nvmlMemory_v2_t>() as u32;
            if memory.version != size | 2 << 24 {
                return Err(ErrorCode::ARGUMENT_VERSION_MISMATCH);
            }
            memory.total = bytes.total;
            memory.reserved = bytes.reserved;
            memory.free = bytes.free;
            memory.used = bytes.used;
            Ok(())
        })?
    }
}

struct Bytes {
    total: u64,
    used: u64,
    reserved: u64,
    free: u64,
}

impl Bytes {
    fn of(target: &Target) -> Answer<Self> {
        let memory = target.mig().map_or(&target.gpu().memory, |mig| &mig.memory);
        let total = target.long(&memory.total)?;
        let used = target.long(&memory.used)?;
        let reserved = target.long(&memory.reserved).unwrap_or(0);
        let left = total.saturating_sub(used).saturating_sub(reserved);
        Ok(Self {
            total,
            used,
            reserved,
            free: target.long(&memory.free).unwrap_or(left),
        })
    }
}
