//! Who is on a GPU.

use fake_nvml::{Process, ProcessKind};
use nvml_wrapper::enums::device::UsedGpuMemory;

use crate::Fake;

#[test]
fn processes_are_listed_by_what_they_do() {
    let fake = Fake::with(|gpu| {
        let process = |pid, used_bytes, kind| Process {
            pid,
            used_bytes,
            kind,
            ..Process::default()
        };
        gpu.processes = (1..=20)
            .map(|pid| process(pid, Some(u64::from(pid) << 30), ProcessKind::Compute))
            .chain([
                process(100, None, ProcessKind::Graphics),
                process(200, Some(5), ProcessKind::Mps),
            ])
            .collect();
    });
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.running_compute_processes_count().unwrap(), 20);
    let computing = gpu.running_compute_processes().unwrap();
    assert_eq!(computing.len(), 20);
    assert_eq!(computing[2].pid, 3);
    assert_eq!(computing[2].used_gpu_memory, UsedGpuMemory::Used(3 << 30));
    assert_eq!(computing[2].gpu_instance_id, None);
    let drawing = gpu.running_graphics_processes().unwrap();
    assert_eq!(drawing[0].used_gpu_memory, UsedGpuMemory::Unavailable);
    assert_eq!(gpu.mps_running_compute_processes().unwrap()[0].pid, 200);
}

#[test]
fn an_idle_gpu_has_none() {
    let fake = Fake::with(|_| ());
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.running_compute_processes_count().unwrap(), 0);
    assert!(gpu.running_compute_processes().unwrap().is_empty());
    assert!(gpu.mps_running_compute_processes().unwrap().is_empty());
}
