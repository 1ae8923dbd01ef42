//! Drivers in order and out of it: sampling goes on and says how things are.

use fake_nvml::{ErrorCode, Gpu, Scenario, Value, Xid};
use slurm_serve_proto::v1::{self, DriverState, GpuState};

use crate::site::{Site, text};

#[tokio::test]
async fn what_a_card_says_is_told_in_base_units() {
    let mut gpu = Gpu::h100_nvl(3);
    gpu.power.average = Some(310_500.into());
    gpu.energy_mj = Some(5_000_000.into());
    gpu.utilization.gpu = Some(87.into());
    let mut site = Site::with(&Scenario::with_gpus([gpu]));
    let sample = site
        .until("a reading with performance monitors", |sample| {
            sample.gpus.iter().any(|gpu| gpu.sm_active_ratio.is_some())
        })
        .await;
    let gpu = &sample.gpus[0];
    assert_eq!((sample.node.as_str(), sample.cluster.as_str()), ("n1", "lab"));
    assert_eq!((gpu.index, gpu.minor, gpu.state()), (0, Some(3), GpuState::Ok));
    assert_eq!(gpu.power_watts, Some(310.5));
    assert_eq!(gpu.energy_joules, Some(5000.0));
    assert_eq!(gpu.utilization_ratio, Some(0.87));
    assert!(gpu.temperature_celsius.is_some() && gpu.memory_total_bytes.is_some());
    let driver = sample.driver.as_ref().unwrap();
    assert_eq!(
        (driver.version.as_str(), driver.text.as_str()),
        ("570.133.20", "")
    );
    assert_eq!(driver.cuda_version, "12.8");
    let own = sample.self_.as_ref().unwrap();
    assert!(own.resident_bytes.is_some() && own.reader_resident_bytes.is_some());
    assert!(
        own.calls
            .iter()
            .any(|call| call.function == "nvmlDeviceGetUtilizationRates" && call.count > 1)
    );
}

#[tokio::test]
async fn what_a_card_does_not_support_is_absent_and_asked_for_once() {
    let gpu = Gpu {
        uuid: "GPU-1".into(),
        pci_bus_id: "00000000:3B:00.0".into(),
        ..Gpu::default()
    };
    let mut site = Site::with(&Scenario::with_gpus([gpu]));
    let sample = site
        .until("several readings", |sample| {
            sample.sequence > 5 && !sample.gpus.is_empty()
        })
        .await;
    let told = &sample.gpus[0];
    assert_eq!(told.state(), GpuState::Ok);
    let absent = [
        told.utilization_ratio,
        told.power_watts,
        told.energy_joules,
        told.sm_active_ratio,
    ];
    assert_eq!(absent, [None; 4]);
    assert_eq!(
        (
            told.ecc_uncorrected_volatile,
            told.mig_enabled,
            told.row_remap_pending
        ),
        (None, None, None)
    );
    let calls = &sample.self_.as_ref().unwrap().calls;
    let call = calls
        .iter()
        .find(|call| call.function == "nvmlDeviceGetUtilizationRates")
        .unwrap();
    assert_eq!((call.count, call.errors), (1, 1));
}

#[tokio::test]
async fn a_node_without_a_driver_says_so_and_goes_on() {
    let mut site = Site::without_driver();
    let sample = site.until_driver(DriverState::Absent).await;
    assert!(
        text(&sample).contains("NVIDIA's library is not here"),
        "{}",
        text(&sample)
    );
    let now = sample.sequence;
    site.until("the next samples", |sample| sample.sequence > now + 3)
        .await;
}

#[tokio::test]
async fn a_library_that_is_none_is_told_of() {
    let sample = Site::with_rubbish().until_driver(DriverState::Absent).await;
    assert!(!text(&sample).is_empty() && !text(&sample).contains('\n'));
}

#[tokio::test]
async fn a_driver_that_was_updated_without_a_reload_says_what_to_do() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0)]);
    scenario.init_error = Some(ErrorCode::LIB_RM_VERSION_MISMATCH);
    let mut site = Site::with(&scenario);
    let sample = site.until_driver(DriverState::Failed).await;
    assert!(
        text(&sample).contains("reload the driver or reboot"),
        "{}",
        text(&sample)
    );
    // It is tried again.
    scenario.init_error = None;
    site.plays(&scenario);
    site.until_driver(DriverState::Ok).await;
}

#[tokio::test]
async fn values_that_need_permissions_are_absent_and_the_rest_is_read() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0)]);
    let refused = "nvmlDeviceGetPowerUsage";
    for function in [refused, "nvmlDeviceGetTotalEnergyConsumption"] {
        scenario.errors.insert(function.into(), ErrorCode::NO_PERMISSION);
    }
    let mut site = Site::with(&scenario);
    let sample = site.until_driver(DriverState::Ok).await;
    assert_eq!(sample.gpus[0].energy_joules, None);
    assert!(sample.gpus[0].utilization_ratio.is_some());
}

#[tokio::test]
async fn a_call_that_hangs_leaves_the_last_values_with_their_age_and_is_named() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0)]);
    let mut site = Site::with(&scenario);
    site.until_driver(DriverState::Ok).await;
    scenario.hangs.push("nvmlDeviceGetTemperature".into());
    site.plays(&scenario);
    let sample = site.until_driver(DriverState::Hung).await;
    assert!(
        text(&sample).contains("nvmlDeviceGetTemperature"),
        "{}",
        text(&sample)
    );
    let gpu = &sample.gpus[0];
    assert_eq!(gpu.state(), GpuState::Stale);
    assert!(gpu.age_ms >= 500 && gpu.utilization_ratio.is_some());
    scenario.hangs.clear();
    site.plays(&scenario);
    let sample = site.until_driver(DriverState::Ok).await;
    assert_eq!(sample.gpus[0].state(), GpuState::Ok);
}

#[tokio::test]
async fn a_lost_gpu_is_a_state_and_the_others_go_on() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]);
    let mut site = Site::with(&scenario);
    site.until("two GPUs", |sample| sample.gpus.len() == 2).await;
    scenario.gpus[0].lost = true;
    site.plays(&scenario);
    let is_lost = |sample: &v1::NodeSample| sample.gpus[0].state() == GpuState::Lost;
    let sample = site.until("the first one is lost", is_lost).await;
    assert_eq!(sample.gpus[0].utilization_ratio, None);
    assert_eq!(sample.gpus[1].state(), GpuState::Ok);
    assert!(sample.gpus[1].utilization_ratio.is_some());
    scenario.gpus[0].lost = false;
    site.plays(&scenario);
    site.until("it is back", |sample| sample.gpus[0].state() == GpuState::Ok)
        .await;
}

#[tokio::test]
async fn an_xid_is_counted_for_its_gpu() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)]);
    let mut site = Site::with(&scenario);
    site.until_driver(DriverState::Ok).await;
    scenario.gpus[1].xids.push(Xid {
        at_s: 0.0,
        xid: 48,
        ..Xid::default()
    });
    site.plays(&scenario);
    let has = |sample: &v1::NodeSample| sample.gpus[1].xids.get(&48) == Some(&1);
    let sample = site.until("it is counted", has).await;
    assert!(sample.gpus[0].xids.is_empty());
}

#[tokio::test]
async fn letting_go_of_the_driver_ends_its_process_until_it_is_resumed() {
    let mut site = Site::with_gpus(1);
    site.until_driver(DriverState::Ok).await;
    assert_eq!(site.readers(), 1);
    assert!(site.telemetry.quiesce(None).await);
    assert_eq!(site.readers(), 0, "a handle keeps a GPU from being reset");
    let sample = site.until_driver(DriverState::Quiesced).await;
    assert_eq!(sample.gpus[0].state(), GpuState::Stale);
    site.telemetry.resume().await;
    site.until_driver(DriverState::Ok).await;
}

#[tokio::test]
async fn values_follow_the_driver() {
    let mut gpu = Gpu::h100_nvl(0);
    gpu.temperature.core = Some(Value::from(40));
    let mut scenario = Scenario::with_gpus([gpu]);
    let mut site = Site::with(&scenario);
    let is = |celsius: f64| {
        move |sample: &v1::NodeSample| {
            sample
                .gpus
                .iter()
                .any(|gpu| gpu.temperature_celsius == Some(celsius))
        }
    };
    site.until("40 °C", is(40.0)).await;
    scenario.gpus[0].temperature.core = Some(Value::from(83));
    site.plays(&scenario);
    site.until("83 °C", is(83.0)).await;
}

#[tokio::test]
async fn watchers_are_bounded() {
    let site = Site::with_gpus(1);
    let second = site.telemetry.watch();
    assert!(second.is_some() && site.telemetry.watch().is_none());
    drop(second);
    assert!(site.telemetry.watch().is_some());
}
