//! The library itself.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::export;
use crate::ErrorCode;
use crate::out::Out;
use crate::state::state;

/// Starts.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    crate::call::init("nvmlInit_v2")
}

/// Starts; no flag changes anything here.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    crate::call::init("nvmlInitWithFlags")
}

/// The words for a code; no scenario changes them.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    ErrorCode(code).text().as_ptr()
}

export! {
    /// Ends.
    fn nvmlShutdown(|_call|) {
        state().stop()
    }

    /// As `570.133.20`.
    fn nvmlSystemGetDriverVersion(|call| version: Out<c_char>, length: c_uint) {
        let known = call.scenario.driver_version.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?;
        version.put_text(length, known)
    }

    /// As `12.570.133.20`.
    fn nvmlSystemGetNVMLVersion(|call| version: Out<c_char>, length: c_uint) {
        let known = call.scenario.nvml_version.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)?;
        version.put_text(length, known)
    }

    /// As 12080.
    fn nvmlSystemGetCudaDriverVersion_v2(|call| version: Out<c_int>) {
        version.put(call.scenario.cuda_version.ok_or(ErrorCode::NOT_SUPPORTED)?)
    }
}
