//! GPUs that are cut into slices.

use fake_nvml::{Gpm, Memory, Mig, MigInstance, Process};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;

use crate::Fake;

fn sliced() -> Fake {
    Fake::with(|gpu| {
        let instance = |number: u32| MigInstance {
            uuid: format!("MIG-{number}"),
            name: "NVIDIA H100 NVL MIG 1g.12gb".into(),
            gi: 7 + number,
            ci: 0,
            memory: Memory {
                total: Some((12u64 << 30).into()),
                used: Some((u64::from(number) << 30).into()),
                ..Memory::default()
            },
            gpu_slices: 1,
            compute_slices: 1,
            multiprocessors: 16,
            gpm: Some(Gpm {
                sm_util: Some((number * 10).into()),
                ..Gpm::default()
            }),
        };
        gpu.mig = Some(Mig {
            enabled: true,
            instances: vec![instance(0), instance(1), instance(2)],
            ..Mig::default()
        });
        let process = |pid, gi| Process {
            pid,
            used_bytes: Some(1 << 20),
            gi: Some(gi),
            ci: Some(0),
            ..Process::default()
        };
        gpu.processes = vec![process(11, 7), process(12, 8), process(13, 8)];
    })
}

#[test]
fn instances_are_devices() {
    let fake = sliced();
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.mig_mode().unwrap().current, 1);
    assert_eq!(gpu.mig_device_count().unwrap(), 7);
    assert!(!gpu.mig_is_mig_device_handle().unwrap());
    let instance = gpu.mig_device_by_index(1).unwrap();
    assert!(instance.mig_is_mig_device_handle().unwrap());
    assert_eq!(instance.uuid().unwrap(), "MIG-1");
    assert_eq!(instance.index().unwrap(), 1);
    assert_eq!(instance.name().unwrap(), "NVIDIA H100 NVL MIG 1g.12gb");
    assert_eq!(instance.memory_info().unwrap().used, 1 << 30);
    let attributes = instance.attributes().unwrap();
    assert_eq!(
        (attributes.gpu_instance_slice_count, attributes.memory_size_mb),
        (1, 12 << 10)
    );
    let parent = instance.mig_parent_device().unwrap();
    assert_eq!(parent.uuid().unwrap(), gpu.uuid().unwrap());
    assert_eq!(fake.nvml.device_by_uuid("MIG-2").unwrap().index().unwrap(), 2);
    assert!(matches!(gpu.mig_device_by_index(3), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.mig_device_by_index(7), Err(NvmlError::InvalidArg)));
}

#[test]
fn the_ids_of_an_instance_are_there_for_raw_calls() {
    let fake = sliced();
    let instance = fake.nvml.device_by_uuid("MIG-1").unwrap();
    let lib = fake.nvml.lib();
    let (mut gi, mut ci) = (u32::MAX, u32::MAX);
    // SAFETY: the handle is of this library, which is open, and both numbers are good to write to.
    #[allow(unsafe_code)]
    let codes = unsafe {
        [
            lib.nvmlDeviceGetGpuInstanceId(instance.handle(), &mut gi),
            lib.nvmlDeviceGetComputeInstanceId(instance.handle(), &mut ci),
        ]
    };
    assert_eq!((codes, gi, ci), ([0, 0], 8, 0));
}

#[test]
fn processes_have_their_instance() {
    let fake = sliced();
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let all = gpu.running_compute_processes().unwrap();
    let ids: Vec<_> = all
        .iter()
        .map(|process| (process.pid, process.gpu_instance_id))
        .collect();
    assert_eq!(ids, [(11, Some(7)), (12, Some(8)), (13, Some(8))]);
    let of_one = gpu
        .mig_device_by_index(1)
        .unwrap()
        .running_compute_processes()
        .unwrap();
    assert_eq!(
        of_one.iter().map(|process| process.pid).collect::<Vec<_>>(),
        [12, 13]
    );
}

#[test]
fn utilization_has_no_answer() {
    let mut fake = sliced();
    {
        let gpu = fake.nvml.device_by_index(0).unwrap();
        assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
        let instance = gpu.mig_device_by_index(0).unwrap();
        assert!(matches!(
            instance.utilization_rates(),
            Err(NvmlError::NotSupported)
        ));
        assert!(gpu.power_usage().is_ok());
    }
    fake.change(|scenario| scenario.gpus[0].mig = Some(Mig::default()));
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert!(gpu.utilization_rates().is_ok());
    assert_eq!(gpu.mig_device_count().unwrap(), 0);
    assert!(matches!(
        fake.nvml.device_by_uuid("MIG-1"),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn an_instance_has_its_own_monitors() {
    let fake = sliced();
    let gpu = fake.nvml.device_by_index(0).unwrap();
    let (first, second) = (gpu.gpm_mig_sample(8).unwrap(), gpu.gpm_mig_sample(8).unwrap());
    let values = gpm_metrics_get(&fake.nvml, &first, &second, &[GpmMetricId::SmUtil]).unwrap();
    assert_eq!(values[0].as_ref().unwrap().value, 10.0);
    assert!(matches!(gpu.gpm_mig_sample(99), Err(NvmlError::InvalidArg)));
}
