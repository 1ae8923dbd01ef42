//! A scenario that changes while it is read.

use std::collections::BTreeMap;

use crate::Fake;

#[test]
fn a_new_scenario_is_seen_at_the_next_call() {
    let mut fake = Fake::with(|_| ());
    for watts in 100..200 {
        fake.change(|scenario| scenario.gpus[0].power.average = Some((watts * 1000).into()));
        let gpu = fake.nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.power_usage().unwrap(), watts * 1000);
    }
}

#[test]
fn a_broken_one_and_none_change_nothing() {
    let fake = Fake::with(|gpu| gpu.power.average = Some(123_000.into()));
    let gpu = fake.nvml.device_by_index(0).unwrap();
    std::fs::write(fake.file(), "{\"gpus\": [").unwrap();
    assert_eq!(gpu.power_usage().unwrap(), 123_000);
    std::fs::remove_file(fake.file()).unwrap();
    assert_eq!(gpu.power_usage().unwrap(), 123_000);
}

#[test]
fn calls_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("calls.json");
    let mut fake = Fake::with(|_| ());
    fake.change(|scenario| scenario.calls_to = Some(counts.clone()));
    {
        let gpu = fake.nvml.device_by_index(0).unwrap();
        for _ in 0..7 {
            gpu.power_usage().unwrap();
        }
    }
    fake.nvml.shutdown().unwrap();
    let counts: BTreeMap<String, u64> = serde_json::from_slice(&std::fs::read(counts).unwrap()).unwrap();
    assert_eq!(counts["nvmlDeviceGetPowerUsage"], 7);
    assert_eq!(counts["nvmlShutdown"], 1);
    assert_eq!(counts["nvmlInit_v2"], 1);
}
