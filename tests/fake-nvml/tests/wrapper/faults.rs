//! GPUs and drivers that don't do what they should.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fake_nvml::{ALL, ErrorCode, Gpu, Scenario};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::{DEADLINE, Fake, eventually};

#[test]
fn functions_fail_as_they_are_told() {
    let mut gpus = [Gpu::h100_nvl(0), Gpu::h100_nvl(1)];
    gpus[0].errors = [("nvmlDeviceGetPowerUsage".to_owned(), ErrorCode::NO_PERMISSION)].into();
    let mut scenario = Scenario::with_gpus(gpus);
    scenario.errors = [
        ("nvmlDeviceGetName".to_owned(), ErrorCode::UNKNOWN),
        ("nvmlDeviceGetSerial".to_owned(), ErrorCode(30)),
    ]
    .into();
    let mut fake = Fake::open(scenario);
    {
        let gpu = |index| fake.nvml.device_by_index(index).unwrap();
        assert!(matches!(gpu(0).power_usage(), Err(NvmlError::NoPermission)));
        assert!(gpu(1).power_usage().is_ok());
        assert!(matches!(gpu(1).name(), Err(NvmlError::Unknown)));
        assert!(matches!(gpu(1).serial(), Err(NvmlError::UnexpectedVariant(30))));
    }
    fake.change(|scenario| scenario.errors = [(ALL.to_owned(), ErrorCode::OPERATING_SYSTEM)].into());
    assert!(matches!(
        fake.nvml.device_count(),
        Err(NvmlError::OperatingSystem)
    ));
}

#[test]
fn a_lost_gpu_answers_nothing_and_others_do() {
    let mut fake = Fake::open(Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]));
    fake.change(|scenario| scenario.gpus[0].lost = true);
    assert_eq!(fake.nvml.device_count().unwrap(), 2);
    assert!(matches!(fake.nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert!(fake.nvml.device_by_index(1).unwrap().power_usage().is_ok());
}

#[test]
fn a_gpu_is_lost_under_its_handle() {
    let fake = Fake::with(|_| ());
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert!(gpu.power_usage().is_ok());
    let mut lost = fake.scenario.clone();
    lost.gpus[0].lost = true;
    lost.write(fake.file()).unwrap();
    assert!(matches!(gpu.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(gpu.uuid(), Err(NvmlError::GpuLost)));
    // It is back after a reset, and the old handle still means it.
    fake.scenario.write(fake.file()).unwrap();
    assert!(gpu.power_usage().is_ok());
    // One that is no longer there at all was lost too.
    Scenario::with_gpus([]).write(fake.file()).unwrap();
    assert!(matches!(gpu.power_usage(), Err(NvmlError::GpuLost)));
}

#[test]
fn a_hang_ends_when_the_scenario_changes() {
    const HUNG: &str = "nvmlDeviceGetUtilizationRates";
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]);
    scenario.gpus[0].hangs = vec![HUNG.into()];
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("calls.json");
    scenario.calls_to = Some(counts.clone());
    let fake = Fake::open(scenario);
    std::thread::scope(|scope| {
        let (sender, answers) = mpsc::channel();
        let hung = fake.nvml.device_by_index(0).unwrap();
        scope.spawn(move || sender.send(hung.utilization_rates().is_ok()));
        eventually("the call is on its way", || {
            let text = std::fs::read_to_string(&counts).unwrap_or_default();
            serde_json::from_str::<BTreeMap<String, u64>>(&text).is_ok_and(|counts| counts.contains_key(HUNG))
        });
        // The other GPU goes on, and so does what else there is to ask of this one.
        let other = fake.nvml.device_by_index(1).unwrap();
        assert!(other.utilization_rates().is_ok());
        assert!(fake.nvml.device_by_index(0).unwrap().power_usage().is_ok());
        assert!(answers.try_recv().is_err());

        let mut released = fake.scenario.clone();
        released.gpus[0].hangs.clear();
        released.write(fake.file()).unwrap();
        assert_eq!(answers.recv_timeout(DEADLINE), Ok(true));
    });
}

#[test]
fn calls_take_their_time() {
    let fake = Fake::with(|gpu| {
        gpu.delays_us = [("nvmlDeviceGetPcieThroughput".to_owned(), 20_000)].into();
    });
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let start = Instant::now();
    gpu.pcie_throughput(nvml_wrapper::enum_wrappers::device::PcieUtilCounter::Send)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn init_fails_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::with_gpus([]);
    scenario.init_error = Some(ErrorCode::LIB_RM_VERSION_MISMATCH);
    let library = fake_nvml::install(folder.path(), &scenario).unwrap();
    let init = || Nvml::builder().lib_path(library.as_os_str()).init();
    assert!(matches!(init(), Err(NvmlError::LibRmVersionMismatch)));

    let file = folder.path().join(fake_nvml::SCENARIO_FILE);
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(init(), Err(NvmlError::DriverNotLoaded)));

    scenario.init_error = None;
    scenario.write(&file).unwrap();
    assert!(init().is_ok());
}
