//! What the library has and has not.

use fake_nvml::{ErrorCode, FUNCTIONS};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::*;
use object::{Object, ObjectSymbol};

use crate::Fake;

#[test]
fn the_functions_are_those_that_scenarios_know() {
    let content = std::fs::read(fake_nvml::library().unwrap()).unwrap();
    let file = object::File::parse(&*content).unwrap();
    let mut exported: Vec<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with("nvml"))
        .collect();
    exported.sort_unstable();
    assert_eq!(exported, FUNCTIONS);
}

#[test]
fn a_function_that_is_too_new_for_it_is_missing() {
    let fake = Fake::with(|_| ());
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.num_cores(), Err(NvmlError::FailedToLoadSymbol(_))));
}

#[test]
fn flags_start_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = fake_nvml::Scenario::with_gpus([]);
    let library = fake_nvml::install(folder.path(), &scenario).unwrap();
    let mut builder = Nvml::builder();
    builder.lib_path(library.as_os_str()).flags(InitFlags::NO_ATTACH);
    assert_eq!(builder.init().unwrap().device_count().unwrap(), 0);
}

#[test]
fn codes_are_those_of_the_real_one() {
    let codes = [
        (ErrorCode::NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        (
            ErrorCode::INSUFFICIENT_SIZE,
            nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
        ),
        (
            ErrorCode::DRIVER_NOT_LOADED,
            nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
        ),
        (ErrorCode::GPU_IS_LOST, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST),
        (ErrorCode::NO_DATA, nvmlReturn_enum_NVML_ERROR_NO_DATA),
        (ErrorCode::GPU_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND),
    ];
    for (ours, real) in codes {
        assert_eq!(ours.0, real);
    }
}
