//! `sserve gpus`.

use slurm_serve_proto::v1::*;

use crate::fake::{Running, World, assert_plain};

fn sample(driver: DriverState, text: &str, gpus: Vec<Gpu>) -> NodeSample {
    NodeSample {
        node: "n1".into(),
        sequence: 7,
        driver: Some(Driver {
            state: driver.into(),
            text: text.into(),
            version: "580.95.05".into(),
            cuda_version: "13.0".into(),
        }),
        gpus,
        ..NodeSample::default()
    }
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}"),
        index,
        name: "NVIDIA H100 NVL".into(),
        state: GpuState::Ok.into(),
        utilization_ratio: Some(0.5),
        power_watts: Some(201.4),
        power_limit_watts: Some(400.0),
        temperature_celsius: Some(44.0),
        memory_used_bytes: Some(3 << 29),
        memory_total_bytes: Some(94 << 30),
        clock_event_reasons: vec!["gpu_idle".into()],
        ..Gpu::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_for_each_gpu_with_what_the_card_says_and_no_more() {
    let world = World::new().await;
    let mut sick = gpu(1);
    sick.state = GpuState::Lost.into();
    sick.utilization_ratio = None;
    sick.power_limit_watts = None;
    sick.xids = [(79, 1)].into();
    sick.clock_event_reasons = vec!["hw_thermal_slowdown".into()];
    world.change(|known| known.sample = Some(sample(DriverState::Ok, "", vec![gpu(0), sick])));
    let mut command = world.command(&["gpus"]);
    command.env("COLUMNS", "120");
    let gpus = Running::start(command).end().await;
    let lines: Vec<&str> = gpus.succeeds().lines().collect();
    assert_eq!(
        lines,
        [
            "NODE  GPU  NAME             STATE  UTIL      POWER  TEMP        MEMORY  NOTE",
            "n1      0  NVIDIA H100 NVL  ok      50%  201/400 W  44°C  1.5/94.0 GiB",
            "n1      1  NVIDIA H100 NVL  lost             201 W  44°C  1.5/94.0 GiB  Xid 79, hw thermal slowdown",
        ]
    );
    let json = world.run(&["gpus", "--json"]).await.json();
    let rows = &json["nodes"][0]["gpus"];
    assert_eq!(
        (&rows[0]["utilization_ratio"], &rows[1]["xids"]["79"]),
        (&0.5.into(), &1.into())
    );
    assert!(rows[1].get("utilization_ratio").is_none(), "{rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_unwell_says_why() {
    let mut world = World::new().await;
    world.change(|known| {
        known.sample = Some(sample(DriverState::Failed, "\u{1b}[2Jversion mismatch", vec![]))
    });
    let gpus = world.run(&["gpus"]).await;
    assert!(
        gpus.succeeds().contains("failed") && gpus.stdout.contains("version mismatch"),
        "{gpus:?}"
    );
    assert_plain(&gpus.stdout);

    world.change(|known| known.sample = Some(sample(DriverState::Absent, "no driver", vec![])));
    let gpus = world.run(&["gpus"]).await;
    assert_eq!(gpus.succeeds(), "no NVIDIA GPU (asked 1 agent)\n");

    world.change(|known| known.sample = None);
    let gpus = world.run(&["gpus"]).await;
    gpus.fails(4, &["no agent told of its GPUs"]);
    assert!(gpus.stdout.contains("telemetry is turned off here"), "{gpus:?}");

    world.kill_agent().await;
    let gpus = world.run(&["gpus"]).await;
    gpus.fails(4, &["no agent told of its GPUs"]);
    assert!(gpus.stdout.contains("silent"), "{gpus:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_is_let_go_of_and_taken_up_again() {
    let world = World::new().await;
    let quiesce = world.run(&["gpus", "quiesce", "--for", "2m"]).await;
    assert!(quiesce.succeeds().contains("let go of for 2m"), "{quiesce:?}");
    assert_eq!(world.known(|known| known.quiet), Some(120));
    let resume = world.run(&["gpus", "resume", "--nodes", "n1"]).await;
    assert!(
        resume.succeeds().contains("n1: its GPUs are sampled again"),
        "{resume:?}"
    );
    assert_eq!(world.known(|known| known.quiet), None);

    world.change(|known| known.refuse = true);
    let quiesce = world.run(&["gpus", "quiesce"]).await;
    quiesce.fails(1, &["n1: role `admin` is needed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_named_as_slurm_names_them() {
    let world = World::new().await;
    world.change(|known| known.sample = Some(sample(DriverState::Ok, "", vec![gpu(0)])));
    let gpus = world.run(&["gpus", "--nodes", "n[1]"]).await;
    assert!(gpus.succeeds().contains("H100"), "{gpus:?}");
    for bad in ["", "n1,,n2", "n1;reboot", "-n1"] {
        let gpus = world.run(&["gpus", &format!("--nodes={bad}")]).await;
        gpus.fails(2, &["--nodes", "is no node's name"]);
    }
}
