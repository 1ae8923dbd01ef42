//! Power, energy and heat.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU as CORE, nvmlTemperatureSensors_t,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT as THRESHOLDS,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX as GPU_MAX,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX as MEMORY_MAX,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN as SHUTDOWN,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN as SLOWDOWN,
    nvmlTemperatureThresholds_t,
};

use super::{export, export_readings};
use crate::ErrorCode;
use crate::out::Out;

export_readings! {
    /// In milliwatts, averaged by the driver.
    fn nvmlDeviceGetPowerUsage -> c_uint: short(|gpu| &gpu.power.average);

    /// The limit that holds.
    fn nvmlDeviceGetEnforcedPowerLimit -> c_uint: short(|gpu| &gpu.power.enforced_limit);

    /// The limit that was set.
    fn nvmlDeviceGetPowerManagementLimit -> c_uint: short(|gpu| &gpu.power.limit);

    /// The limit that is set at the start.
    fn nvmlDeviceGetPowerManagementDefaultLimit -> c_uint: short(|gpu| &gpu.power.default_limit);

    /// In millijoules.
    fn nvmlDeviceGetTotalEnergyConsumption -> c_ulonglong: long(|gpu| &gpu.energy_mj);
}

export! {
    /// The limits that can be set.
    fn nvmlDeviceGetPowerManagementLimitConstraints(|call| device: nvmlDevice_t, min: Out<c_uint>, max: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        let power = &target.gpu().power;
        min.put(target.short(&power.min_limit)?)?;
        max.put(target.short(&power.max_limit)?)
    }

    /// Of the one sensor that this call knows.
    fn nvmlDeviceGetTemperature(|call| device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, celsius: Out<c_uint>) {
        let target = call.whole_gpu(device)?;
        if sensor != CORE {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        celsius.put(target.short(&target.gpu().temperature.core)?)
    }

    /// Where something happens.
    fn nvmlDeviceGetTemperatureThreshold(|call|
        device: nvmlDevice_t, threshold: nvmlTemperatureThresholds_t, celsius: Out<c_uint>)
    {
        let target = call.whole_gpu(device)?;
        let temperature = &target.gpu().temperature;
        let value = match threshold {
            SHUTDOWN => &temperature.shutdown,
            SLOWDOWN => &temperature.slowdown,
            MEMORY_MAX => &temperature.memory_max,
            GPU_MAX => &temperature.gpu_max,
            THRESHOLDS.. => return Err(ErrorCode::INVALID_ARGUMENT),
            _ => &None,
        };
        celsius.put(target.short(value)?)
    }
}
