//! What can be read of a GPU, group by group. What is absent isn't supported.

use serde::{Deserialize, Serialize};

use crate::Value;

/// `nvmlDeviceGetUtilizationRates`, in percent. Both are needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Utilization {
    /// Of the time, that a kernel ran.
    pub gpu: Option<Value>,
    /// Of the time, that memory was read or written.
    pub memory: Option<Value>,
}

/// Power, in milliwatts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Power {
    /// `nvmlDeviceGetPowerUsage`, and field 185.
    pub average: Option<Value>,
    /// Field 186.
    pub instant: Option<Value>,
    /// `nvmlDeviceGetEnforcedPowerLimit`, and field 190.
    pub enforced_limit: Option<Value>,
    /// `nvmlDeviceGetPowerManagementLimit`, and field 192.
    pub limit: Option<Value>,
    /// `nvmlDeviceGetPowerManagementDefaultLimit`, and field 189.
    pub default_limit: Option<Value>,
    /// The least limit that can be set, and field 187.
    pub min_limit: Option<Value>,
    /// The greatest limit that can be set, and field 188.
    pub max_limit: Option<Value>,
}

/// Temperatures and their thresholds, in degrees Celsius.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Temperature {
    /// `nvmlDeviceGetTemperature`.
    pub core: Option<Value>,
    /// Field 82.
    pub memory: Option<Value>,
    /// Where the GPU switches itself off.
    pub shutdown: Option<Value>,
    /// Where the hardware slows it down.
    pub slowdown: Option<Value>,
    /// The memory's highest.
    pub memory_max: Option<Value>,
    /// The GPU's highest.
    pub gpu_max: Option<Value>,
}

/// Clocks, in MHz.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// Of the graphics engine.
    pub graphics: Option<Value>,
    /// Of the multiprocessors.
    pub sm: Option<Value>,
    /// Of the memory.
    pub memory: Option<Value>,
    /// Of the video engines.
    pub video: Option<Value>,
}

/// `nvmlDeviceGetViolationStatus`: how long something held the clocks back, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Violations {
    /// The power limit.
    pub power: Option<Value>,
    /// The temperature.
    pub thermal: Option<Value>,
    /// The slowest GPU of a boost group.
    pub sync_boost: Option<Value>,
    /// The board's limit.
    pub board_limit: Option<Value>,
    /// Too little to do.
    pub low_utilization: Option<Value>,
    /// The board's reliability.
    pub reliability: Option<Value>,
    /// Below the application clocks, whatever the reason.
    pub total_app_clocks: Option<Value>,
    /// Below the base clocks, whatever the reason.
    pub total_base_clocks: Option<Value>,
}

/// Memory, in bytes, of a GPU or of a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub total: Option<Value>,
    /// In use by processes.
    pub used: Option<Value>,
    /// The driver's own share. Absent: none. The first version of the call counts it as used.
    pub reserved: Option<Value>,
    /// Absent: what the others leave.
    pub free: Option<Value>,
}

/// Error correction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ecc {
    /// Whether it is on.
    pub enabled: Option<bool>,
    /// Whether it will be, after the next reset. Absent: as now.
    pub pending: Option<bool>,
    /// `nvmlDeviceGetTotalEccErrors`.
    pub total: EccErrors,
    /// `nvmlDeviceGetMemoryErrorCounter` of the device's memory.
    pub dram: EccErrors,
    /// `nvmlDeviceGetMemoryErrorCounter` of SRAM.
    pub sram: EccErrors,
}

/// Errors of one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EccErrors {
    /// Of one bit.
    pub corrected: EccCounters,
    /// Of more.
    pub uncorrected: EccCounters,
}

/// Errors of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EccCounters {
    /// Since the driver was loaded.
    pub volatile: Option<Value>,
    /// In the GPU's life.
    pub aggregate: Option<Value>,
}

/// Rows of memory that were replaced by spare ones: fields 142 to 145.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemappedRows {
    /// For errors that were corrected.
    pub corrected: Option<Value>,
    /// For errors that were not.
    pub uncorrected: Option<Value>,
    /// 1 if some wait for a reset.
    pub pending: Option<Value>,
    /// 1 if one could not be replaced.
    pub failure: Option<Value>,
}

/// The GPU's link to the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pcie {
    /// Of now; a GPU at rest has a lower one.
    pub generation: Option<Value>,
    /// Lanes of now.
    pub width: Option<Value>,
    /// The most that GPU and host both can.
    pub max_generation: Option<Value>,
    /// The most lanes that GPU and host both have.
    pub max_width: Option<Value>,
    /// `nvmlDeviceGetPcieReplayCounter`, and field 94.
    pub replays: Option<Value>,
    /// Sent, in KB each second.
    pub tx_kb_s: Option<Value>,
    /// Received, in KB each second.
    pub rx_kb_s: Option<Value>,
}
