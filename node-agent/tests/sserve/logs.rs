//! `sserve logs`.

use slurm_serve_proto::v1::{LogChunk, ModelState};

use crate::fake::{World, assert_plain};

fn chunk(lines: &[&str]) -> LogChunk {
    LogChunk {
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        dropped: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kept_lines_without_what_a_terminal_obeys() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    world.change(|known| {
        known.log = vec![
            chunk(&["one", "\u{1b}[2Jtwo\u{7}"]),
            LogChunk {
                lines: vec!["three".into()],
                dropped: 5,
            },
        ];
    });
    let logs = world.run(&["logs", "-n", "100", "12"]).await;
    assert_eq!(logs.succeeds(), "one\ntwo\nthree\n");
    assert_plain(&logs.stderr);
    assert!(
        logs.stderr.contains("5 lines") && logs.stderr.contains("n1:/home/alice/serve-12.log"),
        "{logs:?}"
    );
    assert_eq!(world.known(|known| known.asked_log), Some((100, false)));
    let json = world.run(&["logs", "--json", "12"]).await;
    let first: serde_json::Value = serde_json::from_str(json.succeeds().lines().next().unwrap()).unwrap();
    assert_eq!(first["lines"][0], "one");
    assert_eq!(world.known(|known| known.asked_log), Some((0, false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn following_ends_with_the_model() {
    let world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    world.change(|known| known.log = vec![chunk(&["one"])]);
    let mut logs = world.start(&["logs", "-f", "12"]);
    assert_eq!(logs.line().await, "one");
    world.change(|known| known.log.push(chunk(&["two"])));
    assert_eq!(logs.line().await, "two");
    world.model(12, ModelState::Ended, |_| {});
    logs.end().await.succeeds();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_meanwhile_is_said() {
    let mut world = World::new().await;
    world.model(12, ModelState::Ready, |_| {});
    world.change(|known| known.log = vec![chunk(&["one"])]);
    let mut logs = world.start(&["logs", "-f", "12"]);
    assert_eq!(logs.line().await, "one");
    world.kill_agent().await;
    logs.end().await.fails(4, &["agent of n1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_line_is_said_to_be_none() {
    let world = World::new().await;
    world.model(12, ModelState::Requested, |model| model.log_path.clear());
    let logs = world.run(&["logs", "12"]).await;
    assert_eq!(logs.succeeds(), "");
    assert!(logs.stderr.contains("no log yet"), "{logs:?}");
}
