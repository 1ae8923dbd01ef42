//! Numbers, and their absence.

use fake_nvml::{EccCounters, Gpu, Value};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, MemoryLocation, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;

use crate::{Fake, eventually, unix_ago};

#[test]
fn what_is_there_is_read() {
    let fake = Fake::with(|gpu| {
        gpu.utilization.gpu = Some(97.into());
        gpu.utilization.memory = Some(41.into());
        gpu.power.average = Some(388_123.into());
        gpu.clocks.sm = Some(1650.into());
        gpu.temperature.core = Some(71.into());
        // The power cap and the heat at once, as under load.
        gpu.clock_events = Some(0x24.into());
        gpu.violations.thermal = Some(5_000_000_000u64.into());
        gpu.ecc.total.uncorrected = EccCounters {
            volatile: Some(1.into()),
            aggregate: Some(3.into()),
        };
        gpu.ecc.dram.corrected.volatile = Some(2.into());
        gpu.pcie.replays = Some(4.into());
        gpu.pcie.generation = Some(1.into());
        gpu.pcie.rx_kb_s = Some(12_000.into());
    });
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let utilization = gpu.utilization_rates().unwrap();
    assert_eq!((utilization.gpu, utilization.memory), (97, 41));
    assert_eq!(gpu.power_usage().unwrap(), 388_123);
    assert_eq!(gpu.enforced_power_limit().unwrap(), 400_000);
    assert_eq!(gpu.power_management_limit().unwrap(), 400_000);
    assert_eq!(gpu.power_management_limit_default().unwrap(), 400_000);
    assert_eq!(
        gpu.power_management_limit_constraints().unwrap().min_limit,
        200_000
    );
    assert_eq!(gpu.clock_info(Clock::SM).unwrap(), 1650);
    assert_eq!(gpu.clock_info(Clock::Memory).unwrap(), 2619);
    assert_eq!(gpu.max_clock_info(Clock::Graphics).unwrap(), 1785);
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 71);
    assert_eq!(
        gpu.temperature_threshold(TemperatureThreshold::Slowdown).unwrap(),
        90
    );
    let reasons = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::SW_THERMAL_SLOWDOWN;
    assert_eq!(gpu.current_throttle_reasons_strict().unwrap(), reasons);
    assert_eq!(gpu.supported_throttle_reasons().unwrap(), ThrottleReasons::all());
    let thermal = gpu.violation_status(PerformancePolicy::Thermal).unwrap();
    assert_eq!(thermal.violation_time, 5_000_000_000);
    assert!(gpu.is_ecc_enabled().unwrap().pending_enabled);
    let total = |counter| gpu.total_ecc_errors(MemoryError::Uncorrected, counter).unwrap();
    assert_eq!(
        (total(EccCounter::Volatile), total(EccCounter::Aggregate)),
        (1, 3)
    );
    let at = |location| gpu.memory_error_counter(MemoryError::Corrected, EccCounter::Volatile, location);
    assert_eq!(at(MemoryLocation::Device).unwrap(), 2);
    assert_eq!(at(MemoryLocation::SRAM).unwrap(), 0);
    assert!(matches!(
        at(MemoryLocation::L1Cache),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(gpu.pcie_replay_counter().unwrap(), 4);
    assert_eq!(gpu.current_pcie_link_gen().unwrap(), 1);
    assert_eq!(gpu.max_pcie_link_gen().unwrap(), 5);
    assert_eq!(gpu.current_pcie_link_width().unwrap(), 16);
    assert_eq!(gpu.max_pcie_link_width().unwrap(), 16);
    assert_eq!(gpu.pcie_throughput(PcieUtilCounter::Receive).unwrap(), 12_000);
}

#[test]
fn memory_adds_up() {
    let fake = Fake::with(|gpu| {
        gpu.memory.total = Some(1000.into());
        gpu.memory.reserved = Some(50.into());
        gpu.memory.used = Some(200.into());
    });
    let memory = fake.nvml.device_by_index(0).unwrap().memory_info().unwrap();
    assert_eq!((memory.total, memory.reserved), (1000, 50));
    assert_eq!((memory.used, memory.free), (200, 750));
}

#[test]
fn what_is_absent_is_not_supported() {
    let fake = Fake::with(|gpu| {
        *gpu = Gpu {
            uuid: gpu.uuid.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
            ..Gpu::default()
        };
    });
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let answers = [
        gpu.utilization_rates().err(),
        gpu.power_usage().err(),
        gpu.total_energy_consumption().err(),
        gpu.temperature(TemperatureSensor::Gpu).err(),
        gpu.memory_info().err(),
        gpu.clock_info(Clock::SM).err(),
        gpu.current_throttle_reasons().err(),
        gpu.is_ecc_enabled().err(),
        gpu.pcie_replay_counter().err(),
        gpu.minor_number().err(),
        gpu.serial().err(),
        gpu.mig_mode().err(),
        gpu.numa_node_id().err(),
        gpu.supported_event_types().err(),
    ];
    for (place, answer) in answers.iter().enumerate() {
        assert!(
            matches!(answer, Some(NvmlError::NotSupported)),
            "{place}: {answer:?}"
        );
    }
    assert!(!gpu.gpm_support().unwrap());
}

#[test]
fn values_change_with_time() {
    let mut fake = Fake::with(|gpu| {
        gpu.utilization.gpu = Some(Value::steps([(0.0, 5.0), (1000.0, 98.0)]));
        gpu.energy_mj = Some(Value::ramp(1_000_000.0, 350_000.0));
        gpu.power.average = Some(Value::Steps {
            steps: vec![(0.0, Some(300_000.0)), (1000.0, None)],
        });
    });
    let used = |fake: &Fake| {
        fake.nvml
            .device_by_index(0)
            .unwrap()
            .utilization_rates()
            .unwrap()
            .gpu
    };
    let energy = |fake: &Fake| {
        let gpu = fake.nvml.device_by_index(0).unwrap();
        gpu.total_energy_consumption().unwrap()
    };
    assert_eq!(used(&fake), 5);
    let first = energy(&fake);
    assert!(first >= 1_000_000);
    eventually("the counter grows", || energy(&fake) > first);

    fake.change(|scenario| scenario.started_unix_s = Some(unix_ago(2000.0)));
    assert_eq!(used(&fake), 98);
    assert!(energy(&fake) >= 701_000_000);
    let power = fake.nvml.device_by_index(0).unwrap().power_usage();
    assert!(matches!(power, Err(NvmlError::NotSupported)));
}
