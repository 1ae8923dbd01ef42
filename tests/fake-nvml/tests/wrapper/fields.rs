//! Readings by number.

use fake_nvml::Value;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::*;

use crate::Fake;

fn read(fake: &Fake, id: u32) -> Result<SampleValue, NvmlError> {
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let mut values = gpu.field_values_for(&[FieldId(id)]).unwrap();
    values.remove(0).unwrap().value
}

#[test]
fn fields_have_the_driver_s_types() {
    let fake = Fake::with(|gpu| {
        gpu.remapped_rows.uncorrected = Some(2.into());
        gpu.remapped_rows.pending = Some(1.into());
        gpu.power.instant = Some(391_000.into());
        gpu.fields = [("138".to_owned(), Value::from(7_000_000_000u64))].into();
    });
    assert_eq!(
        read(&fake, NVML_FI_DEV_REMAPPED_COR).unwrap(),
        SampleValue::U32(0)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_REMAPPED_UNC).unwrap(),
        SampleValue::U32(2)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_REMAPPED_PENDING).unwrap(),
        SampleValue::U32(1)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_REMAPPED_FAILURE).unwrap(),
        SampleValue::U32(0)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_MEMORY_TEMP).unwrap(),
        SampleValue::U32(41)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_POWER_AVERAGE).unwrap(),
        SampleValue::U32(62_000)
    );
    assert_eq!(
        read(&fake, NVML_FI_DEV_POWER_INSTANT).unwrap(),
        SampleValue::U32(391_000)
    );
    let sent = read(&fake, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).unwrap();
    assert_eq!(sent, SampleValue::U64(7_000_000_000));
}

#[test]
fn one_that_fails_spoils_no_other() {
    let fake = Fake::with(|gpu| gpu.temperature.memory = None);
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let ids = [
        FieldId(NVML_FI_DEV_MEMORY_TEMP),
        FieldId(NVML_FI_DEV_POWER_AVERAGE),
    ];
    let values = gpu.field_values_for(&ids).unwrap();
    let value = |place: usize| &values[place].as_ref().unwrap().value;
    assert!(matches!(value(0), Err(NvmlError::NotSupported)));
    assert_eq!(*value(1).as_ref().unwrap(), SampleValue::U32(62_000));
}

#[test]
fn the_wrapper_asks_for_the_first_link_alone() {
    let fake = Fake::with(|gpu| {
        gpu.fields = [("138@0".to_owned(), 1.into()), ("138@all".to_owned(), 18.into())].into();
    });
    let sent = read(&fake, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).unwrap();
    assert_eq!(sent, SampleValue::U64(1));
}

#[test]
fn new_drivers_number_some_otherwise() {
    let mut fake = Fake::with(|gpu| {
        gpu.fields = [("252".to_owned(), 12.into()), ("270".to_owned(), 13.into())].into();
    });
    assert_eq!(read(&fake, 252).unwrap(), SampleValue::U64(12));
    fake.scenario.driver_version = Some("580.95.05".into());
    let newer = Fake::open(fake.scenario.clone());
    assert_eq!(read(&newer, 252).unwrap(), SampleValue::U64(13));
    let gpu = newer.nvml.device_by_index(0).unwrap();
    let value = gpu.field_values_for(&[FieldId(252)]).unwrap().remove(0).unwrap();
    assert_eq!(value.field, FieldId(270));
}
