//! Several readings in one call.

use std::ffi::{c_int, c_longlong};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t, nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE as DOUBLE,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as SHORT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as LONG, nvmlValueType_t,
};

use super::export;
use crate::ErrorCode;
use crate::call::Target;
use crate::field::{is_short, reading};
use crate::out::Out;

export! {
    /// Each by itself succeeds or fails.
    fn nvmlDeviceGetFieldValues(|call| device: nvmlDevice_t, count: c_int, values: Out<nvmlFieldValue_t>) {
        let target = call.whole_gpu(device)?;
        let count = usize::try_from(count).map_err(|_| ErrorCode::INVALID_ARGUMENT)?;
        if count == 0 || values.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        let faults = [call.scenario.faults(), target.gpu().faults()];
        let delay: Duration = faults.iter().map(|faults| faults.delay(call.function)).sum();
        for place in 0..count {
            values.nth(place).edit(|value| {
                fill(&target, value);
                value.latencyUsec = (delay.as_micros() / count as u128) as c_longlong;
            })?;
        }
        Ok(())
    }
}

fn fill(target: &Target, field: &mut nvmlFieldValue_t) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    field.timestamp = since.as_micros() as c_longlong;
    let number = reading(target.gpu(), field.fieldId, field.scopeId).and_then(|value| value.at(target.now));
    let Some(number) = number else {
        field.nvmlReturn = ErrorCode::NOT_SUPPORTED.0;
        return;
    };
    (field.valueType, field.value) = typed(field.fieldId, number);
    field.nvmlReturn = 0;
}

fn typed(id: u32, number: f64) -> (nvmlValueType_t, nvmlValue_t) {
    // The rest of the union stays zero, for callers who read more of it than they should.
    let mut value = nvmlValue_t { ullVal: 0 };
    if is_short(id) {
        value.uiVal = number.round() as u32;
        (SHORT, value)
    } else if number.fract() == 0.0 {
        value.ullVal = number as u64;
        (LONG, value)
    } else {
        value.dVal = number;
        (DOUBLE, value)
    }
}
