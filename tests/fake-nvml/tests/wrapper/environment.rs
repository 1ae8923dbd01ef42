//! A scenario that the environment names.

use std::process::Command;

use fake_nvml::{Gpu, Scenario};
use nvml_wrapper::Nvml;

#[test]
fn the_environment_names_a_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("any.json");
    Scenario::with_gpus([Gpu::h100_nvl(0), Gpu::h100_nvl(1)])
        .write(&file)
        .unwrap();
    // Only another process can have another environment.
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "environment::two_gpus"])
        .env("FAKE_NVML_SCENARIO", &file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "only for the other process"]
fn two_gpus() {
    let library = fake_nvml::library().unwrap();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 2);
}
