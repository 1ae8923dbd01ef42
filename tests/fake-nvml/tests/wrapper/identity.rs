//! Which GPU is which.

use fake_nvml::{Gpu, Scenario};
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::CudaComputeCapability;

use crate::Fake;

#[test]
fn the_driver_says_what_it_is() {
    let fake = Fake::with(|_| ());
    assert_eq!(fake.nvml.sys_driver_version().unwrap(), "570.133.20");
    assert_eq!(fake.nvml.sys_nvml_version().unwrap(), "12.570.133.20");
    assert_eq!(fake.nvml.sys_cuda_driver_version().unwrap(), 12_080);
    assert_eq!(fake.nvml.device_count().unwrap(), 1);
}

#[test]
fn a_gpu_says_what_it_is() {
    let fake = Fake::with(|_| ());
    let gpu = fake.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.name().unwrap(), "NVIDIA H100 NVL");
    assert_eq!(gpu.serial().unwrap(), "1650000000000");
    assert_eq!(gpu.brand().unwrap(), Brand::Nvidia);
    assert_eq!(gpu.architecture().unwrap(), DeviceArchitecture::Hopper);
    let ninth = CudaComputeCapability { major: 9, minor: 0 };
    assert_eq!(gpu.cuda_compute_capability().unwrap(), ninth);
    assert!(gpu.is_in_persistent_mode().unwrap());
    assert_eq!(gpu.numa_node_id().unwrap(), 0);
    let pci = gpu.pci_info().unwrap();
    assert_eq!((pci.domain, pci.bus, pci.device), (0, 1, 0));
    assert_eq!(pci.bus_id, "00000000:01:00.0");
    assert_eq!(pci.pci_device_id, 0x2321_10DE);
}

#[test]
fn the_index_is_not_the_minor() {
    // As on machines whose device files count from the other end.
    let gpus = (0..4).map(|number| Gpu {
        minor: Some(3 - number),
        ..Gpu::h100_nvl(number)
    });
    let fake = Fake::open(Scenario::with_gpus(gpus));
    for index in 0..4 {
        let gpu = fake.nvml.device_by_index(index).unwrap();
        assert_eq!(gpu.index().unwrap(), index);
        assert_eq!(gpu.minor_number().unwrap(), 3 - index);
        let uuid = gpu.uuid().unwrap();
        assert_eq!(uuid, fake.scenario.gpus[index as usize].uuid);
        let by_uuid = fake.nvml.device_by_uuid(uuid).unwrap();
        assert_eq!(by_uuid.index().unwrap(), index);
        let by_bus = fake
            .nvml
            .device_by_pci_bus_id(format!("0000:{:02x}:00.0", index + 1));
        assert_eq!(by_bus.unwrap().index().unwrap(), index);
    }
    assert!(matches!(fake.nvml.device_by_index(4), Err(NvmlError::InvalidArg)));
    assert!(matches!(
        fake.nvml.device_by_uuid("GPU-none"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(
        fake.nvml.device_by_pci_bus_id("99:00.0"),
        Err(NvmlError::NotFound)
    ));
}
