//! Performance monitors.

use fake_nvml::{Gpm, Gpu, Scenario, Value};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;

use crate::{Fake, unix_ago};

#[test]
fn metrics_are_the_mean_between_two_samples() {
    let mut fake = Fake::with(|gpu| {
        gpu.gpm = Some(Gpm {
            sm_util: Some(91.5.into()),
            sm_occupancy: Some(Value::steps([(0.0, 0.0), (150.0, 80.0)])),
            any_tensor_util: Some(63.into()),
            dram_bw_util: None,
            ..Gpm::default()
        });
    });
    // The time between the samples is the scenario's: from 100 s to 200 s, half of it at 0.
    fake.change(|scenario| scenario.started_unix_s = Some(unix_ago(100.0)));
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let first = gpu.gpm_sample().unwrap();
    let mut later = fake.scenario.clone();
    later.started_unix_s = Some(unix_ago(200.0));
    later.write(fake.file()).unwrap();
    let second = gpu.gpm_sample().unwrap();

    let wanted = [
        GpmMetricId::SmUtil,
        GpmMetricId::SmOccupancy,
        GpmMetricId::AnyTensorUtil,
        GpmMetricId::DramBwUtil,
    ];
    let values = gpm_metrics_get(&fake.nvml, &first, &second, &wanted).unwrap();
    let value = |place: usize| values[place].as_ref().map(|result| result.value);
    assert_eq!(value(0).unwrap(), 91.5);
    let occupancy = value(1).unwrap();
    assert!((35.0..=45.0).contains(&occupancy), "{occupancy}");
    assert_eq!(value(2).unwrap(), 63.0);
    assert!(matches!(value(3), Err(NvmlError::NotSupported)));
    let info = &values[0].as_ref().unwrap().metric_info;
    assert_eq!(info.short_name, "SM UTIL");
    // The wrong way round.
    let wrong = gpm_metrics_get(&fake.nvml, &second, &first, &wanted);
    assert!(matches!(wrong, Err(NvmlError::InvalidArg)));
}

#[test]
fn a_gpu_before_hopper_has_none() {
    let mut gpus = [Gpu::h100_nvl(0), Gpu::h100_nvl(1)];
    gpus[0].gpm = None;
    let fake = Fake::open(Scenario::with_gpus(gpus));
    let old = fake.nvml.device_by_index(0).unwrap();
    assert!(!old.gpm_support().unwrap());
    assert!(matches!(old.gpm_sample(), Err(NvmlError::NotSupported)));
    assert!(fake.nvml.device_by_index(1).unwrap().gpm_sample().is_ok());
}
