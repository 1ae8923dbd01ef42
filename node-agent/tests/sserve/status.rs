//! `sserve status`.

use slurm_serve_proto::v1::{Cause, Ending, ModelState};

use crate::fake::{Running, World, assert_plain};

#[tokio::test(flavor = "multi_thread")]
async fn one_job_in_detail() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |model| {
        model.in_flight = 2;
        model.requests = 17;
        model.aliases = vec!["t".into()];
    });
    let status = world.run(&["status", "12"]).await;
    let text = status.succeeds();
    for part in [
        "tiny (job 12 on n1)",
        "ready",
        "alice",
        "as tiny, t",
        "http://10.0.0.1:18100/v1",
        "2 in flight, 17 since",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("sk-of-the-job"), "a key on the screen:\n{text}");
    let json = world.run(&["--json", "status", "12"]).await.json();
    assert_eq!((&json["job_id"], &json["state"]), (&12.into(), &"ready".into()));
    assert_eq!(json.get("key"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_explained_and_its_log_cannot_command_the_terminal() {
    let world = World::new().await;
    world.model(12, ModelState::Failed, |model| {
        model.ending = Some(Ending {
            cause: Cause::GpuMemory.into(),
            text: "not enough free memory on GPU 0".into(),
            hint: "ask for a whole GPU".into(),
            log_path: "/home/alice/serve-12.log".into(),
            log_tail: vec!["\u{1b}]0;owned\u{7}ValueError: \u{1b}[31mfree memory\u{1b}[0m".into()],
            wait_status: Some(1 << 8),
        });
    });
    let status = world.run(&["status", "12"]).await;
    let text = status.succeeds();
    for part in [
        "failed",
        "gpu memory",
        "not enough free memory",
        "ask for a whole GPU",
        "n1:/home/alice/serve-12.log",
        "| ValueError: free memory",
        "code 1",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_plain(text);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_mine() {
    let world = World::new().await;
    let me = nix::unistd::getuid().as_raw();
    let nothing = world.run(&["status"]).await;
    assert!(
        nothing.succeeds().starts_with("you serve no model now"),
        "{nothing:?}"
    );
    world.model(12, ModelState::Ready, |model| model.owner_uid = me);
    world.model(13, ModelState::Ended, |model| model.owner_uid = me);
    world.model(14, ModelState::Ready, |model| model.owner_uid = me + 1);
    let mine = world.run(&["status"]).await;
    let table = mine.succeeds();
    assert!(
        table.contains("12") && table.contains("13") && !table.contains("14"),
        "{table}"
    );
    let json = world.run(&["status", "--json"]).await.json();
    assert_eq!(json["models"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_job_that_job_is_meant() {
    let world = World::new().await;
    world.model(12, ModelState::Loading, |model| {
        model.progress = "shards 1/4".into()
    });
    let mut command = world.command(&["status"]);
    command.env("SLURM_JOB_ID", "12");
    let status = Running::start(command).end().await;
    assert!(status.succeeds().contains("progress  shards 1/4"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_config_is_named() {
    let world = World::new().await;
    world.configure("[client]\ngatewy = \"x\"");
    world
        .run(&["status", "12"])
        .await
        .fails(2, &["config.toml", "gatewy"]);
    let world = World::without_agent();
    std::fs::remove_file(world.path("config.toml")).unwrap();
    world
        .run(&["status", "12"])
        .await
        .fails(2, &["config.toml", "--config"]);
}
