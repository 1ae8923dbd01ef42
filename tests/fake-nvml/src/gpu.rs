//! One GPU of a scenario.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::faults::Faults;
use crate::{
    Clocks, Ecc, EccCounters, EccErrors, ErrorCode, Gpm, Memory, Mig, Pcie, Power, RemappedRows, Temperature,
    Utilization, Value, Violations,
};

/// What one GPU is and says. What is absent (`null`) answers "not supported".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// `GPU-…`; each has its own.
    pub uuid: String,
    /// As `NVIDIA H100 NVL`.
    pub name: String,
    /// Of the board.
    pub serial: Option<String>,
    /// The number of `/dev/nvidia*`. On real machines it is often not the index.
    pub minor: Option<u32>,
    /// As `00000000:3B:00.0`; each has its own.
    pub pci_bus_id: String,
    /// Device, then vendor (0x10DE).
    pub pci_device_id: u32,
    /// Of the board's maker.
    pub pci_subsystem_id: u32,
    /// `nvmlBrandType_t`; 14 is NVIDIA.
    pub brand: Option<u32>,
    /// `nvmlDeviceArchitecture_t`; 7 is Ampere, 9 Hopper, 10 Blackwell.
    pub architecture: Option<u32>,
    /// Major and minor.
    pub compute_capability: Option<(i32, i32)>,
    /// Whether the driver stays loaded while nobody uses it.
    pub persistence: Option<bool>,
    /// `nvmlDeviceGetNumaNodeId`.
    pub numa_node: Option<u32>,
    /// It has fallen off the bus: every call answers `GPU_IS_LOST`.
    pub lost: bool,

    /// Functions (or `*`) that fail for this GPU, and how; before those of the whole library.
    pub errors: BTreeMap<String, ErrorCode>,
    /// Functions (or `*`) that take so many microseconds for this GPU, on top of the whole library's.
    pub delays_us: BTreeMap<String, u64>,
    /// Functions (or `*`) that don't come back for this GPU, until the scenario no longer says so.
    pub hangs: Vec<String>,

    /// Not supported while MIG is on, whatever is here.
    pub utilization: Utilization,
    /// In milliwatts.
    pub power: Power,
    /// `nvmlDeviceGetTotalEnergyConsumption`, in millijoules, and field 83.
    pub energy_mj: Option<Value>,
    /// In degrees Celsius.
    pub temperature: Temperature,
    /// In MHz.
    pub clocks: Clocks,
    /// In MHz.
    pub max_clocks: Clocks,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons`: a mask of reasons.
    pub clock_events: Option<Value>,
    /// The reasons that the GPU knows.
    pub supported_clock_events: Option<Value>,
    /// In nanoseconds.
    pub violations: Violations,
    /// In bytes.
    pub memory: Memory,
    /// Error correction.
    pub ecc: Ecc,
    /// Rows of memory that were replaced.
    pub remapped_rows: RemappedRows,
    /// The link to the host.
    pub pcie: Pcie,
    /// `nvmlDeviceGetFieldValues`, besides what the others give: `"138"` for any scope, `"138@0"` and `"138@all"` for one. The numbers are
    /// the driver's own: those from 251 to 273 are others from 580.82 on.
    pub fields: BTreeMap<String, Value>,
    /// Those on the GPU.
    pub processes: Vec<Process>,
    /// MIG. Absent: the GPU can't.
    pub mig: Option<Mig>,
    /// Performance monitors. Absent: the GPU has none.
    pub gpm: Option<Gpm>,
    /// A mask of events that can be asked for.
    pub event_types: Option<u64>,
    /// What the driver reports, each once.
    pub xids: Vec<Xid>,
}

/// A process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// As the host numbers it.
    pub pid: u32,
    /// Absent: the driver can't say.
    pub used_bytes: Option<u64>,
    /// Which list it is in.
    pub kind: ProcessKind,
    /// The GPU instance, with MIG.
    pub gi: Option<u32>,
    /// The compute instance, with MIG.
    pub ci: Option<u32>,
}

/// What a process does on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// Computes.
    #[default]
    Compute,
    /// Draws.
    Graphics,
    /// Computes by way of MPS.
    Mps,
}

/// An Xid, for who waits for events.
///
/// Each place in the list is told once, so a new one belongs at the end of it. With [`crate::Scenario::started_unix_s`], one from before the
/// library was first initialised is never told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Xid {
    /// When.
    pub at_s: f64,
    /// Which.
    pub xid: u64,
    /// The GPU instance that it befell.
    pub gi: Option<u32>,
    /// The compute instance that it befell.
    pub ci: Option<u32>,
}

impl Gpu {
    /// A healthy H100 NVL at rest, that supports everything; MIG is off. The number makes it differ from others: it is the minor, and in the UUID,
    /// the serial and the bus address.
    pub fn h100_nvl(number: u32) -> Self {
        let value = |number: u64| Some(Value::from(number));
        let none = EccCounters {
            volatile: value(0),
            aggregate: value(0),
        };
        let no_errors = EccErrors {
            corrected: none.clone(),
            uncorrected: none,
        };
        Self {
            uuid: format!("GPU-00000000-0000-4000-8000-{number:012x}"),
            name: "NVIDIA H100 NVL".into(),
            serial: Some(format!("16500000{number:05}")),
            minor: Some(number),
            pci_bus_id: format!("00000000:{:02X}:00.0", number + 1),
            pci_device_id: 0x2321_10DE,
            pci_subsystem_id: 0x1839_10DE,
            brand: Some(14),
            architecture: Some(9),
            compute_capability: Some((9, 0)),
            persistence: Some(true),
            numa_node: Some(0),
            utilization: Utilization {
                gpu: value(0),
                memory: value(0),
            },
            power: Power {
                average: value(62_000),
                instant: value(61_500),
                enforced_limit: value(400_000),
                limit: value(400_000),
                default_limit: value(400_000),
                min_limit: value(200_000),
                max_limit: value(400_000),
            },
            energy_mj: Some(Value::ramp(1_000_000.0, 62_000.0)),
            temperature: Temperature {
                core: value(34),
                memory: value(41),
                shutdown: value(95),
                slowdown: value(90),
                memory_max: value(95),
                gpu_max: value(87),
            },
            clocks: Clocks {
                graphics: value(345),
                sm: value(345),
                memory: value(2619),
                video: value(765),
            },
            max_clocks: Clocks {
                graphics: value(1785),
                sm: value(1785),
                memory: value(2619),
                video: value(1665),
            },
            // Idle.
            clock_events: value(1),
            supported_clock_events: value(0x1FF),
            violations: Violations {
                power: value(0),
                thermal: value(0),
                sync_boost: value(0),
                board_limit: value(0),
                low_utilization: value(0),
                reliability: value(0),
                total_app_clocks: value(0),
                total_base_clocks: value(0),
            },
            memory: Memory {
                total: value(100_485_038_080),
                used: value(0),
                reserved: value(660_000_000),
                free: None,
            },
            ecc: Ecc {
                enabled: Some(true),
                pending: None,
                total: no_errors.clone(),
                dram: no_errors.clone(),
                sram: no_errors,
            },
            remapped_rows: RemappedRows {
                corrected: value(0),
                uncorrected: value(0),
                pending: value(0),
                failure: value(0),
            },
            pcie: Pcie {
                generation: value(5),
                width: value(16),
                max_generation: value(5),
                max_width: value(16),
                replays: value(0),
                tx_kb_s: value(0),
                rx_kb_s: value(0),
            },
            mig: Some(Mig::default()),
            gpm: Some(Gpm {
                graphics_util: value(0),
                sm_util: value(0),
                sm_occupancy: value(0),
                any_tensor_util: value(0),
                dram_bw_util: value(0),
                others: BTreeMap::new(),
            }),
            // ECC errors of one bit and of two, performance state, Xid, clock.
            event_types: Some(0x1F),
            ..Self::default()
        }
    }

    /// The MIG instances, if MIG is on.
    pub(crate) fn instances(&self) -> &[crate::MigInstance] {
        self.mig
            .as_ref()
            .filter(|mig| mig.enabled)
            .map_or(&[], |mig| &mig.instances)
    }

    pub(crate) fn faults(&self) -> Faults<'_> {
        Faults {
            errors: &self.errors,
            delays_us: &self.delays_us,
            hangs: &self.hangs,
        }
    }
}
