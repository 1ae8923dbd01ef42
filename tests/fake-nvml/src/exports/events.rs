//! Events, for who waits for them.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use super::export;
use crate::ErrorCode;
use crate::call::{Answer, POLL};
use crate::events::XID;
use crate::handles::{to_number, to_pointer};
use crate::out::Out;
use crate::state::state;

export! {
    /// A mask of what can be asked for.
    fn nvmlDeviceGetSupportedEventTypes(|call| device: nvmlDevice_t, types: Out<c_ulonglong>) {
        types.put(call.whole_gpu(device)?.gpu().event_types.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }

    /// Asks for events of a GPU. Only Xids ever come.
    fn nvmlDeviceRegisterEvents(|call| device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) {
        let target = call.whole_gpu(device)?;
        let known = target.gpu().event_types.ok_or(ErrorCode::NOT_SUPPORTED)?;
        if types & !known != 0 {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        state().events.register(number(set)?, &target.gpu().uuid, types)
    }

    /// An empty set.
    fn nvmlEventSetCreate(|_call| set: Out<nvmlEventSet_t>) {
        let new = state().events.create();
        set.put(to_pointer(new))
    }

    /// Ends a set.
    fn nvmlEventSetFree(|_call| set: nvmlEventSet_t) {
        state().events.free(number(set)?)
    }

    /// Waits for one event.
    fn nvmlEventSetWait_v2(|_call| set: nvmlEventSet_t, data: Out<nvmlEventData_t>, timeout_ms: c_uint) {
        let set = number(set)?;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            if let Some(event) = due(set)? {
                return data.put(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorCode::TIMEOUT);
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

fn due(set: usize) -> Answer<Option<nvmlEventData_t>> {
    let mut state = state();
    if !state.is_started() {
        return Err(ErrorCode::UNINITIALIZED);
    }
    let scenario = state.scenario()?;
    let (since, now) = (state.since(&scenario), state.now(&scenario));
    let Some((gpu, xid)) = state.events.next_due(set, &scenario, since, now)? else {
        return Ok(None);
    };
    Ok(Some(nvmlEventData_t {
        device: state.handles.hand_out(gpu),
        eventType: XID,
        eventData: xid.xid,
        gpuInstanceId: xid.gi.unwrap_or(u32::MAX),
        computeInstanceId: xid.ci.unwrap_or(u32::MAX),
    }))
}

fn number(set: nvmlEventSet_t) -> Answer<usize> {
    to_number(set).ok_or(ErrorCode::INVALID_ARGUMENT)
}
