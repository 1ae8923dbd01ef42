//! One card: what it is, and what it says each second.

use std::collections::HashMap;

use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PerformancePolicy, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use slurm_serve_proto::v1;

use super::calls::Calls;
use super::fields;

/// Values that change seldom, or whose calls are slow, are read once in so many samples.
const SELDOM: u64 = 10;

/// More processes than these are counted, not listed.
const PROCESSES: usize = 256;

/// A card, with what is remembered of it between two samples.
pub struct Card<'nvml> {
    nvml: &'nvml Nvml,
    device: Device<'nvml>,
    /// What was read last: what is read seldom stays, and a card that is lost is still known.
    last: v1::Gpu,
    gpm: Option<GpmSample<'nvml>>,
    has_gpm: bool,
    is_lost: bool,
}

impl<'nvml> Card<'nvml> {
    /// The card with that index, and what never changes of it.
    ///
    /// # Errors
    /// It can't be told from others: it has no UUID, or is lost already.
    pub fn open(nvml: &'nvml Nvml, index: u32, calls: &mut Calls) -> Result<Self, NvmlError> {
        let device = calls.run(index, "nvmlDeviceGetHandleByIndex", || {
            nvml.device_by_index(index)
        })?;
        let uuid = calls.run(index, "nvmlDeviceGetUUID", || device.uuid())?;
        let mut ask = Asked { index, calls };
        let mut last = v1::Gpu {
            uuid,
            index,
            minor: ask.value("nvmlDeviceGetMinorNumber", || device.minor_number()),
            name: ask
                .value("nvmlDeviceGetName", || device.name())
                .unwrap_or_default(),
            pci_bus_id: ask
                .value("nvmlDeviceGetPciInfo", || device.pci_info())
                .map(|pci| pci.bus_id)
                .unwrap_or_default(),
            ..v1::Gpu::default()
        };
        last.max_sm_clock_hertz = ask
            .value("nvmlDeviceGetMaxClockInfo", || device.max_clock_info(Clock::SM))
            .map(hertz);
        last.pcie_max_generation = ask.value("nvmlDeviceGetMaxPcieLinkGeneration", || {
            device.max_pcie_link_gen()
        });
        last.pcie_max_width = ask.value("nvmlDeviceGetMaxPcieLinkWidth", || device.max_pcie_link_width());
        last.slowdown_temperature_celsius = ask
            .value("nvmlDeviceGetTemperatureThreshold", || {
                device.temperature_threshold(TemperatureThreshold::Slowdown)
            })
            .map(f64::from);
        let has_gpm = ask.value("nvmlGpmQueryDeviceSupport", || device.gpm_support());
        Ok(Self {
            nvml,
            device,
            last,
            gpm: None,
            has_gpm: has_gpm.unwrap_or(false),
            is_lost: false,
        })
    }

    /// Its handle, for events.
    pub fn device(&self) -> &Device<'nvml> {
        &self.device
    }

    /// The driver's number.
    pub fn index(&self) -> u32 {
        self.last.index
    }

    /// It fell off the bus, or its driver gave it up.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// What it says now. `tick` counts samples.
    pub fn read(&mut self, tick: u64, calls: &mut Calls) -> v1::Gpu {
        if !self.is_lost {
            calls.take_lost();
            self.read_often(calls);
            if tick.is_multiple_of(SELDOM) {
                self.read_seldom(calls);
            }
            self.is_lost = calls.take_lost();
        }
        if self.is_lost {
            // It comes back by a reset, and then as another handle: this process ends for that.
            return lost(&self.last);
        }
        let mut gpu = self.last.clone();
        gpu.state = v1::GpuState::Ok.into();
        gpu
    }

    fn read_often(&mut self, calls: &mut Calls) {
        let (device, gpu) = (&self.device, &mut self.last);
        let mut ask = Asked {
            index: gpu.index,
            calls,
        };
        let busy = ask.value("nvmlDeviceGetUtilizationRates", || device.utilization_rates());
        gpu.utilization_ratio = busy.as_ref().map(|busy| f64::from(busy.gpu) / 100.0);
        gpu.memory_utilization_ratio = busy.map(|busy| f64::from(busy.memory) / 100.0);
        let fields = ask
            .value("nvmlDeviceGetFieldValues", || fields::read(device))
            .unwrap_or_default();
        gpu.power_watts = match fields.power_average {
            Some(milli) => Some(milli / 1e3),
            None => ask
                .value("nvmlDeviceGetPowerUsage", || device.power_usage())
                .map(|milli| f64::from(milli) / 1e3),
        };
        gpu.power_instant_watts = fields.power_instant.map(|milli| milli / 1e3);
        gpu.energy_joules = ask
            .value("nvmlDeviceGetTotalEnergyConsumption", || {
                device.total_energy_consumption()
            })
            .map(|milli| milli as f64 / 1e3);
        gpu.temperature_celsius = ask
            .value("nvmlDeviceGetTemperature", || {
                device.temperature(TemperatureSensor::Gpu)
            })
            .map(f64::from);
        gpu.memory_temperature_celsius = fields.memory_temperature.filter(|celsius| *celsius > 0.0);
        gpu.remapped_rows_corrected = fields.remapped_corrected;
        gpu.remapped_rows_uncorrected = fields.remapped_uncorrected;
        gpu.row_remap_pending = fields.remap_pending;
        gpu.row_remap_failed = fields.remap_failed;
        gpu.nvlink_received_bytes = fields.nvlink_received.map(|kib| kib << 10);
        gpu.nvlink_sent_bytes = fields.nvlink_sent.map(|kib| kib << 10);
        gpu.sm_clock_hertz = ask
            .value("nvmlDeviceGetClockInfo(sm)", || device.clock_info(Clock::SM))
            .map(hertz);
        gpu.memory_clock_hertz = ask
            .value("nvmlDeviceGetClockInfo(memory)", || {
                device.clock_info(Clock::Memory)
            })
            .map(hertz);
        gpu.clock_event_reasons = ask
            .value("nvmlDeviceGetCurrentClocksThrottleReasons", || {
                device.current_throttle_reasons()
            })
            .map(reasons)
            .unwrap_or_default();
        let memory = ask.value("nvmlDeviceGetMemoryInfo", || device.memory_info());
        gpu.memory_total_bytes = memory.as_ref().map(|memory| memory.total);
        gpu.memory_used_bytes = memory.map(|memory| memory.used);
        let compute = ask.value("nvmlDeviceGetComputeRunningProcesses", || {
            device.running_compute_processes()
        });
        let mps = ask.value("nvmlDeviceGetMPSComputeRunningProcesses", || {
            device.mps_running_compute_processes()
        });
        let running: Vec<ProcessInfo> = compute.into_iter().chain(mps).flatten().collect();
        gpu.process_count = u32::try_from(running.len()).unwrap_or(u32::MAX);
        gpu.processes = listed(running);
        if self.has_gpm {
            self.read_gpm(calls);
        }
    }

    /// Of the time between two samples: the first one has none.
    fn read_gpm(&mut self, calls: &mut Calls) {
        const IDS: [GpmMetricId; 3] = [
            GpmMetricId::SmUtil,
            GpmMetricId::AnyTensorUtil,
            GpmMetricId::DramBwUtil,
        ];
        let (nvml, device, index) = (self.nvml, &self.device, self.last.index);
        let now = calls.ask(index, "nvmlGpmSampleGet", || device.gpm_sample());
        let before = std::mem::replace(&mut self.gpm, now);
        let ratios = match (&before, &self.gpm) {
            (Some(before), Some(now)) => calls.ask(index, "nvmlGpmMetricsGet", || {
                gpm_metrics_get(nvml, before, now, &IDS)
            }),
            _ => None,
        };
        let mut ratios = ratios.into_iter().flatten().map(|metric| {
            let percent = metric.ok()?.value;
            percent.is_finite().then_some((percent / 100.0).clamp(0.0, 1.0))
        });
        let mut next = || ratios.next().flatten();
        self.last.sm_active_ratio = next();
        self.last.tensor_active_ratio = next();
        self.last.dram_active_ratio = next();
    }

    fn read_seldom(&mut self, calls: &mut Calls) {
        let (device, gpu) = (&self.device, &mut self.last);
        let mut ask = Asked {
            index: gpu.index,
            calls,
        };
        gpu.power_limit_watts = ask
            .value("nvmlDeviceGetEnforcedPowerLimit", || {
                device.enforced_power_limit()
            })
            .map(|milli| f64::from(milli) / 1e3);
        let mut violations = HashMap::new();
        for (policy, name) in POLICIES {
            let told = ask.value(name.1, || device.violation_status(policy()));
            if let Some(told) = told {
                violations.insert(name.0.to_owned(), told.violation_time as f64 / 1e9);
            }
        }
        gpu.violation_seconds = violations;
        let mut ecc = |name, error: MemoryError, counter: EccCounter| {
            ask.value(name, || device.total_ecc_errors(error, counter))
        };
        let (soft, hard) = (|| MemoryError::Corrected, || MemoryError::Uncorrected);
        let (recent, ever) = (|| EccCounter::Volatile, || EccCounter::Aggregate);
        gpu.ecc_corrected_volatile = ecc(
            "nvmlDeviceGetTotalEccErrors(corrected, volatile)",
            soft(),
            recent(),
        );
        gpu.ecc_uncorrected_volatile = ecc(
            "nvmlDeviceGetTotalEccErrors(uncorrected, volatile)",
            hard(),
            recent(),
        );
        gpu.ecc_corrected_aggregate = ecc(
            "nvmlDeviceGetTotalEccErrors(corrected, aggregate)",
            soft(),
            ever(),
        );
        gpu.ecc_uncorrected_aggregate = ecc(
            "nvmlDeviceGetTotalEccErrors(uncorrected, aggregate)",
            hard(),
            ever(),
        );
        gpu.pcie_generation = ask.value("nvmlDeviceGetCurrPcieLinkGeneration", || {
            device.current_pcie_link_gen()
        });
        gpu.pcie_width = ask.value("nvmlDeviceGetCurrPcieLinkWidth", || {
            device.current_pcie_link_width()
        });
        gpu.pcie_replays = ask
            .value("nvmlDeviceGetPcieReplayCounter", || device.pcie_replay_counter())
            .map(u64::from);
        gpu.persistence_mode = ask.value("nvmlDeviceGetPersistenceMode", || device.is_in_persistent_mode());
        let mig = ask.value("nvmlDeviceGetMigMode", || device.mig_mode());
        gpu.mig_enabled = mig.map(|mode| mode.current != 0);
        gpu.mig_instances = match gpu.mig_enabled {
            Some(true) => super::mig::instances(device, gpu.index, ask.calls),
            _ => Vec::new(),
        };
    }
}

/// Of a card that is lost: what it was, and nothing of what it did.
fn lost(last: &v1::Gpu) -> v1::Gpu {
    v1::Gpu {
        uuid: last.uuid.clone(),
        index: last.index,
        minor: last.minor,
        name: last.name.clone(),
        pci_bus_id: last.pci_bus_id.clone(),
        state: v1::GpuState::Lost.into(),
        ..v1::Gpu::default()
    }
}

/// A policy each, by what its seconds are called and by the name of its call.
#[allow(clippy::type_complexity)]
const POLICIES: [(fn() -> PerformancePolicy, (&str, &str)); 5] = [
    (
        || PerformancePolicy::Power,
        ("power", "nvmlDeviceGetViolationStatus(power)"),
    ),
    (
        || PerformancePolicy::Thermal,
        ("thermal", "nvmlDeviceGetViolationStatus(thermal)"),
    ),
    (
        || PerformancePolicy::SyncBoost,
        ("sync_boost", "nvmlDeviceGetViolationStatus(sync_boost)"),
    ),
    (
        || PerformancePolicy::BoardLimit,
        ("board_limit", "nvmlDeviceGetViolationStatus(board_limit)"),
    ),
    (
        || PerformancePolicy::Reliability,
        ("reliability", "nvmlDeviceGetViolationStatus(reliability)"),
    ),
];

/// Single bits: several may be set at once.
const REASONS: [(ThrottleReasons, &str); 9] = [
    (ThrottleReasons::GPU_IDLE, "gpu_idle"),
    (
        ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
        "applications_clocks_setting",
    ),
    (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync_boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
    (
        ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
        "hw_power_brake_slowdown",
    ),
    (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display_clock_setting"),
];

fn reasons(bits: ThrottleReasons) -> Vec<String> {
    let set = REASONS.iter().filter(|(bit, _)| bits.contains(*bit));
    set.map(|(_, name)| (*name).to_owned()).collect()
}

fn hertz(mega: u32) -> f64 {
    f64::from(mega) * 1e6
}

/// Largest first.
fn listed(running: Vec<ProcessInfo>) -> Vec<v1::GpuProcess> {
    let mut all: Vec<v1::GpuProcess> = running
        .into_iter()
        .map(|process| v1::GpuProcess {
            pid: process.pid,
            memory_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            gpu_instance: process.gpu_instance_id,
        })
        .collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.memory_bytes));
    all.truncate(PROCESSES);
    all
}

/// Calls of one card.
struct Asked<'a> {
    index: u32,
    calls: &'a mut Calls,
}

impl Asked<'_> {
    fn value<T>(&mut self, function: &'static str, call: impl FnOnce() -> Result<T, NvmlError>) -> Option<T> {
        self.calls.ask(self.index, function, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_bit_of_its_own() {
        let both = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(reasons(both), ["sw_power_cap", "hw_thermal_slowdown"]);
        assert!(reasons(ThrottleReasons::empty()).is_empty());
    }

    #[test]
    fn of_thousands_of_processes_the_largest_are_listed() {
        let process = |pid: u32| ProcessInfo {
            pid,
            used_gpu_memory: UsedGpuMemory::Used(u64::from(pid)),
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let all = listed((0..5000).map(process).collect());
        assert_eq!((all.len(), all[0].pid), (PROCESSES, 4999));
    }

    #[test]
    fn a_lost_card_is_known_and_says_nothing() {
        let before = v1::Gpu {
            uuid: "GPU-1".into(),
            power_watts: Some(300.0),
            ..v1::Gpu::default()
        };
        let gone = lost(&before);
        assert_eq!(gone.uuid, "GPU-1");
        assert_eq!((gone.power_watts, gone.state()), (None, v1::GpuState::Lost));
    }
}
