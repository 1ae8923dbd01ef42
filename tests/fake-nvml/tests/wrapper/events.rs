//! Xids, for who waits for them.

use fake_nvml::{Gpu, Scenario, Xid};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use crate::{DEADLINE, Fake, unix_ago};

fn xid(at_s: f64, xid: u64) -> Xid {
    Xid {
        at_s,
        xid,
        ..Xid::default()
    }
}

#[test]
fn each_xid_comes_once_with_its_gpu() {
    let mut gpus = [Gpu::h100_nvl(0), Gpu::h100_nvl(1)];
    gpus[0].xids = vec![xid(0.1, 48), xid(0.2, 63)];
    gpus[1].xids = vec![xid(0.15, 79)];
    let fake = Fake::open(Scenario::with_gpus(gpus));
    let mut set = fake.nvml.create_event_set().unwrap();
    for index in 0..2 {
        let gpu = fake.nvml.device_by_index(index).unwrap();
        assert!(
            gpu.supported_event_types()
                .unwrap()
                .contains(EventTypes::CRITICAL_XID_ERROR)
        );
        set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    }
    let wait = |ms| {
        set.wait(ms).map(|event| {
            let Some(XidError::Value(xid)) = event.event_data else {
                panic!("{event:?}");
            };
            (event.device.index().unwrap(), xid)
        })
    };
    let long = DEADLINE.as_millis() as u32;
    assert_eq!(wait(long).unwrap(), (0, 48));
    assert_eq!(wait(long).unwrap(), (1, 79));
    assert_eq!(wait(long).unwrap(), (0, 63));
    assert!(matches!(wait(30), Err(NvmlError::Timeout)));

    // A new one, now, while it is waited for.
    let mut later = fake.scenario.clone();
    later.gpus[1].xids.push(xid(0.0, 94));
    std::thread::scope(|scope| {
        scope.spawn(|| later.write(fake.file()).unwrap());
        assert_eq!(wait(long).unwrap(), (1, 94));
    });
    set.release_events().unwrap();
}

#[test]
fn who_asks_for_nothing_hears_nothing() {
    let fake = Fake::with(|gpu| gpu.xids = vec![xid(0.0, 79)]);
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let set = fake.nvml.create_event_set().unwrap();
    let set = gpu.register_events(EventTypes::CLOCK_CHANGE, set).unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
}

#[test]
fn what_happened_before_is_not_told() {
    let mut scenario = Scenario::with_gpus([Gpu::h100_nvl(0)]);
    scenario.gpus[0].xids = vec![xid(10.0, 79)];
    scenario.started_unix_s = Some(unix_ago(60.0));
    let fake = Fake::open(scenario);
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let set = fake.nvml.create_event_set().unwrap();
    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
}

#[test]
fn a_wait_ends_when_a_gpu_is_lost() {
    let mut fake = Fake::with(|_| ());
    let set = {
        let gpu = fake.nvml.device_by_index(0).unwrap();
        let set = fake.nvml.create_event_set().unwrap();
        let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
        let mut lost = fake.scenario.clone();
        lost.gpus[0].lost = true;
        std::thread::scope(|scope| {
            scope.spawn(|| lost.write(fake.file()).unwrap());
            assert!(matches!(
                set.wait(DEADLINE.as_millis() as u32),
                Err(NvmlError::GpuLost)
            ));
        });
        set.release_events()
    };
    set.unwrap();
    fake.change(|scenario| scenario.gpus[0].event_types = Some(0));
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let set = fake.nvml.create_event_set().unwrap();
    let refused = gpu
        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
        .unwrap_err();
    assert!(matches!(refused.error, NvmlError::NotSupported));
}
