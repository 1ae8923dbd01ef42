//! `sserve list`.

use axum::Json;
use axum::routing::get;
use slurm_serve::listing;
use slurm_serve_proto::v1::ModelState;

use crate::fake::{World, assert_plain};

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_rows_and_what_ended_is_not() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |model| model.in_flight = 3);
    world.model(13, ModelState::Loading, |model| {
        model.name = "bob/\u{1b}[31mred".into();
        model.progress = "shards\r1/4".into();
    });
    world.model(14, ModelState::Failed, |_| {});
    let list = world.run(&["list"]).await;
    let lines: Vec<_> = list.succeeds().lines().collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(
        lines[0].starts_with("MODEL") && lines[0].contains("OWNER"),
        "{lines:#?}"
    );
    assert!(
        lines[1].starts_with("bob/red") && lines[1].ends_with("shards 1/4"),
        "{lines:#?}"
    );
    assert!(
        lines[2].starts_with("tiny") && lines[2].contains("alice") && lines[2].contains("12"),
        "{lines:#?}"
    );
    assert_plain(&list.stdout);
    let all = world.run(&["list", "--all"]).await;
    assert!(all.succeeds().contains("failed"), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_is_a_row() {
    let world = World::new().await;
    world.configure("[gateway]\nagents = [\"n1=127.0.0.1:1\", \"n2=127.0.0.1:1\"]");
    world.model(12, ModelState::Ready, |_| {});
    let list = world.run(&["list"]).await;
    let table = list.succeeds();
    assert!(table.lines().any(|line| line.starts_with("tiny")), "{table}");
    assert!(
        table
            .lines()
            .any(|line| line.starts_with('?') && line.contains("silent") && line.contains("n2")),
        "{table}"
    );
    let json = world.run(&["list", "--json"]).await.json();
    assert_eq!(json["models"][0]["job_id"], 12);
    assert_eq!(json["models"][0]["state"], "ready");
    assert_eq!(json["models"][0].get("key"), None, "keys are never listed");
    assert_eq!(json["agents"][0]["state"], "ok");
    assert_eq!(json["agents"][1]["state"], "silent");
    assert!(
        json["agents"][1]["error"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{json}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_served_and_nobody_there_are_two_things() {
    let mut world = World::new().await;
    let empty = world.run(&["list"]).await;
    assert_eq!(empty.succeeds(), "nothing is served (asked 1 agent)\n");
    world.kill_agent().await;
    let list = world.run(&["list"]).await;
    list.fails(4, &["no agent answers"]);
    assert!(list.stdout.contains("silent"), "{list:?}");
    std::fs::remove_file(world.path("agent.sock")).unwrap();
    std::fs::remove_file(world.path("bin/sinfo")).unwrap();
    world
        .run(&["list"])
        .await
        .fails(4, &["no agent on this node", "sinfo", "agent.slurm_bin_dir"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_refuses_says_why() {
    let world = World::new().await;
    world.change(|known| known.refuse = true);
    let list = world.run(&["list"]).await;
    list.fails(4, &["no agent answers"]);
    assert!(list.stdout.contains("you lack the role read"), "{list:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_is_asked_first() {
    let world = World::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = serde_json::json!({
        "models": [{"name": "far", "state": "ready", "owner": "carol", "job_id": 99, "node": "n7", "published": true, "extra": 1}],
        "agents": [{"node": "n7", "state": "ok"}, {"node": "n8", "state": "silent", "error": "no route"}],
    });
    let router = axum::Router::new().route(listing::PATH, get(move || async move { Json(answer) }));
    let gateway = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    world.configure(&format!("[client]\ngateway = \"http://{address}/\""));
    let table = world.run(&["list"]).await;
    let table = table.succeeds();
    assert!(
        table.contains("far") && table.contains("n7") && table.contains("no route"),
        "{table}"
    );
    // What it has not is asked of the agents.
    world.model(12, ModelState::Ended, |_| {});
    assert!(world.run(&["list", "--all"]).await.succeeds().contains("tiny"));
    assert!(
        world
            .run(&["list", "--agents"])
            .await
            .succeeds()
            .contains("nothing is served")
    );
    gateway.abort();
    let _ = gateway.await;
    world
        .run(&["list"])
        .await
        .fails(4, &["gateway http://127.0.0.1", "sserve list --agents"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_the_columns_there_are() {
    let world = World::new().await;
    world.model(1_234_567, ModelState::Loading, |model| {
        model.name = "alice/a-model-with-a-rather-long-name".into();
        model.progress = "Loading safetensors checkpoint shards: 10 % completed, 1 of 10".into();
    });
    for columns in [60, 80, 120] {
        let mut command = world.command(&["list"]);
        command.env("COLUMNS", columns.to_string());
        let list = crate::fake::Running::start(command).end().await;
        let table = list.succeeds();
        assert!(
            table.lines().all(|line| line.chars().count() <= columns),
            "{table}"
        );
        assert!(table.contains("1234567"), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_seen_enough_is_no_error() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = world.command(&["list"]);
    command.stdout(writer);
    let output = command.spawn().unwrap().wait_with_output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
