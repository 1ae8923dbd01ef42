//! What agents say, and what follows from their silence.

use std::time::Duration;

use slurm_serve_proto::v1::ModelState::{Draining, Ended, Failed, Loading, Ready};

use crate::fake_agent::{FakeAgent, model};
use crate::fake_guard::{FakeGuard, Mode};
use crate::harness::{Gateway, LONG};

#[tokio::test]
async fn a_model_comes_when_it_is_said_and_goes_when_it_drains_and_both_are_acknowledged() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let agent = FakeAgent::start("n1", LONG, vec![]);
    let gateway = Gateway::start(&[&agent]).await;
    agent.acknowledged(100).await;
    for (number, end) in [Draining, Ended, Failed].into_iter().enumerate() {
        let generation = format!("g{number}");
        agent.say(vec![model("tiny", &generation, Loading, &guard.base_url)], &[]);
        let revision = agent.say(vec![model("tiny", &generation, Ready, &guard.base_url)], &[]);
        agent.acknowledged(revision).await;
        assert_eq!(gateway.names().await, ["tiny"], "acknowledged means visible");
        assert_eq!(gateway.ask("tiny").await.0, 200);
        let before = guard.seen().len();
        let revision = agent.say(vec![model("tiny", &generation, end, &guard.base_url)], &[]);
        agent.acknowledged(revision).await;
        assert!(gateway.names().await.is_empty(), "acknowledged means gone");
        assert_ne!(gateway.ask("tiny").await.0, 200);
        assert_eq!(
            guard.seen().len(),
            before,
            "no request came after the acknowledgement"
        );
        let revision = agent.say(vec![], &[&generation]);
        agent.acknowledged(revision).await;
    }
}

#[tokio::test]
async fn no_request_fails_while_replicas_come_and_go() {
    let guards = [
        FakeGuard::start(Mode::Answer).await,
        FakeGuard::start(Mode::Answer).await,
    ];
    let stays = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guards[0].base_url)]);
    let moves = FakeAgent::start("n2", LONG, vec![]);
    let gateway = Gateway::start(&[&stays, &moves]).await;
    let asking = async {
        for _ in 0..200 {
            let (status, body) = gateway.ask("tiny").await;
            assert_eq!(status, 200, "{body}");
        }
    };
    let moving = async {
        for number in 0.. {
            let generation = format!("b{number}");
            guards[1].set(Mode::Answer);
            let comes = model("tiny", &generation, Ready, &guards[1].base_url);
            moves.acknowledged(moves.say(vec![comes], &[])).await;
            let goes = model("tiny", &generation, Draining, &guards[1].base_url);
            moves.acknowledged(moves.say(vec![goes], &[])).await;
            guards[1].set(Mode::Drain);
            moves.acknowledged(moves.say(vec![], &[&generation])).await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = moving => {}
    }
}

#[tokio::test]
async fn a_silent_agents_models_stay_for_its_lease_and_then_go() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let mut agent = FakeAgent::start(
        "n1",
        Duration::from_secs(4),
        vec![model("tiny", "a", Ready, &guard.base_url)],
    );
    let gateway = Gateway::start(&[&agent]).await;
    agent.kill();
    gateway.until_agent("n1", "silent").await;
    assert_eq!(gateway.ask("tiny").await.0, 200, "within the lease");
    gateway.until_names(&[]).await;
    let (status, error) = gateway.ask("tiny").await;
    assert_eq!(status, 503);
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no agents reachable"),
        "{error}"
    );
    agent.restart(vec![model("tiny", "a", Ready, &guard.base_url)]);
    gateway.until_names(&["tiny"]).await;
    assert_eq!(gateway.ask("tiny").await.0, 200);
}

#[tokio::test]
async fn a_restarted_agents_snapshot_replaces_what_it_said_before() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let mut agent = FakeAgent::start(
        "n1",
        LONG,
        vec![
            model("stays", "a", Ready, &guard.base_url),
            model("goes", "b", Ready, &guard.base_url),
        ],
    );
    let gateway = Gateway::start(&[&agent]).await;
    assert_eq!(gateway.names().await, ["goes", "stays"]);
    agent.kill();
    agent.restart(vec![
        model("stays", "a", Ready, &guard.base_url),
        model("new", "c", Ready, &guard.base_url),
    ]);
    gateway.until_names(&["new", "stays"]).await;
}

#[tokio::test]
async fn an_agent_that_hangs_is_taken_for_silent() {
    let guard = FakeGuard::start(Mode::Answer).await;
    // A heartbeat that never comes within the lease: as if the process were stopped.
    let agent = FakeAgent::stopped(
        "n1",
        Duration::from_millis(800),
        vec![model("tiny", "a", Ready, &guard.base_url)],
    );
    let gateway = Gateway::with(&[&agent], |_| ()).await;
    gateway.until_agent("n1", "silent").await;
}

#[tokio::test]
async fn a_model_past_its_jobs_end_is_gone_without_a_word() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let in_ms = |ms: u64| {
        let at = std::time::SystemTime::now() + Duration::from_millis(ms);
        i64::try_from(at.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()).unwrap()
    };
    let mut ends = model("tiny", "a", Ready, &guard.base_url);
    ends.expires_ms = in_ms(1500);
    let mut stays = model("big", "b", Ready, &guard.base_url);
    stays.expires_ms = in_ms(3_600_000);
    let agent = FakeAgent::start("n1", LONG, vec![ends, stays]);
    let gateway = Gateway::start(&[&agent]).await;
    gateway.until_names(&["big"]).await;
    assert_eq!(gateway.ask("tiny").await.0, 404);
}
