//! Values by field id: what nvml-wrapper has no call for, or cannot ask with a scope. All of a card in one call.
#![allow(unsafe_code)] // NVML's own struct, with a union in it

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{field_id as id, nvmlFieldValue_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS};
use nvml_wrapper_sys::bindings::{
    nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE as DOUBLE,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG as SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG as UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

/// NVLink's values are of one link, or, with this scope, of all.
const ALL_LINKS: u32 = u32::MAX;

/// Each with its scope: the GPU itself is scope 0 of the power fields.
const ASKED: [(u32, u32); 9] = [
    (id::NVML_FI_DEV_MEMORY_TEMP, 0),
    (id::NVML_FI_DEV_POWER_AVERAGE, 0),
    (id::NVML_FI_DEV_POWER_INSTANT, 0),
    (id::NVML_FI_DEV_REMAPPED_COR, 0),
    (id::NVML_FI_DEV_REMAPPED_UNC, 0),
    (id::NVML_FI_DEV_REMAPPED_PENDING, 0),
    (id::NVML_FI_DEV_REMAPPED_FAILURE, 0),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
];

/// What a card says of [`ASKED`]; `None`: it does not.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Fields {
    /// °C.
    pub memory_temperature: Option<f64>,
    /// mW.
    pub power_average: Option<f64>,
    /// mW.
    pub power_instant: Option<f64>,
    /// Rows.
    pub remapped_corrected: Option<u64>,
    /// Rows.
    pub remapped_uncorrected: Option<u64>,
    /// At the next reset.
    pub remap_pending: Option<bool>,
    /// No spare row was left.
    pub remap_failed: Option<bool>,
    /// KiB.
    pub nvlink_received: Option<u64>,
    /// KiB.
    pub nvlink_sent: Option<u64>,
}

/// Asks for all of them.
pub fn read(device: &Device<'_>) -> Result<Fields, NvmlError> {
    let call = device
        .nvml()
        .lib()
        .nvmlDeviceGetFieldValues
        .as_ref()
        .map_err(|e| NvmlError::FailedToLoadSymbol(e.to_string()))?;
    // SAFETY: a C struct of numbers and a union of numbers; all zero is a value of it.
    let blank: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    let mut values = ASKED.map(|(field, scope)| {
        let mut value = blank;
        (value.fieldId, value.scopeId) = (field, scope);
        value
    });
    let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
    // SAFETY: the handle is of a device whose library `device` borrows; `values` holds `count` elements.
    let answer = unsafe { call(device.handle(), count, values.as_mut_ptr()) };
    nvml_wrapper::error::nvml_try(answer)?;
    let [
        memory,
        average,
        instant,
        corrected,
        uncorrected,
        pending,
        failed,
        received,
        sent,
    ] = values.map(|value| number(&value));
    let whole = |value: Option<f64>| value.map(|value| value as u64);
    let flag = |value: Option<f64>| value.map(|value| value != 0.0);
    Ok(Fields {
        memory_temperature: memory,
        power_average: average,
        power_instant: instant,
        remapped_corrected: whole(corrected),
        remapped_uncorrected: whole(uncorrected),
        remap_pending: flag(pending),
        remap_failed: flag(failed),
        nvlink_received: whole(received),
        nvlink_sent: whole(sent),
    })
}

fn number(value: &nvmlFieldValue_t) -> Option<f64> {
    if value.nvmlReturn != SUCCESS {
        return None;
    }
    let union = value.value;
    // SAFETY: which member of the union holds the value is what `valueType` says; each is a number, of which every pattern is one.
    unsafe {
        match value.valueType {
            DOUBLE => Some(union.dVal),
            UNSIGNED_INT => Some(f64::from(union.uiVal)),
            UNSIGNED_LONG => Some(union.ulVal as f64),
            UNSIGNED_LONG_LONG => Some(union.ullVal as f64),
            SIGNED_LONG_LONG => Some(union.sllVal as f64),
            _ => None,
        }
    }
}
