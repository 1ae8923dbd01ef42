//! What is tried again, and what is not.

use slurm_serve_proto::v1::ModelState::Ready;

use crate::fake_agent::{FakeAgent, model};
use crate::fake_guard::{FakeGuard, Mode};
use crate::harness::{Gateway, LONG};

/// An address where nobody listens.
async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

#[tokio::test]
async fn a_replica_that_drains_or_cannot_be_reached_is_passed_over() {
    let (good, drains) = (
        FakeGuard::start(Mode::Answer).await,
        FakeGuard::start(Mode::Drain).await,
    );
    let models = vec![
        model("tiny", "a", Ready, &good.base_url),
        model("tiny", "b", Ready, &drains.base_url),
        model("tiny", "c", Ready, &nowhere().await),
    ];
    let agent = FakeAgent::start("n1", LONG, models);
    let gateway = Gateway::start(&[&agent]).await;
    for _ in 0..30 {
        let (status, body) = gateway.ask("tiny").await;
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(good.seen().len(), 30);
    assert!(!drains.seen().is_empty(), "it was tried, too");
}

#[tokio::test]
async fn an_engines_own_failure_is_the_clients_to_judge() {
    let (one, two) = (
        FakeGuard::start(Mode::Status(500)).await,
        FakeGuard::start(Mode::Status(503)).await,
    );
    let models = vec![
        model("one", "a", Ready, &one.base_url),
        model("one", "b", Ready, &one.base_url),
        model("two", "c", Ready, &two.base_url),
        model("two", "d", Ready, &two.base_url),
    ];
    let agent = FakeAgent::start("n1", LONG, models);
    let gateway = Gateway::start(&[&agent]).await;
    for (name, status, guard) in [("one", 500, &one), ("two", 503, &two)] {
        let answer = gateway.chat(name).send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text().await.unwrap(), "the engine's words");
        assert_eq!(guard.seen().len(), 1, "asked once");
    }
}

#[tokio::test]
async fn when_nobody_takes_it_the_client_is_told_when_to_come_back() {
    let guard = FakeGuard::start(Mode::Drain).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guard.base_url)]);
    let gateway = Gateway::start(&[&agent]).await;
    let answer = gateway.chat("tiny").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (503, &"7".parse().unwrap())
    );
    let error: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(
        error["error"]["message"],
        "tiny takes no new requests just now (job 7 on n1)"
    );
    assert_eq!(guard.seen().len(), 1);
}

#[tokio::test]
async fn tries_are_bounded() {
    let guard = FakeGuard::start(Mode::Drain).await;
    let models = (0..10).map(|n| model("tiny", &format!("g{n}"), Ready, &guard.base_url));
    let agent = FakeAgent::start("n1", LONG, models.collect());
    let gateway = Gateway::start(&[&agent]).await;
    assert_eq!(gateway.ask("tiny").await.0, 503);
    assert_eq!(guard.seen().len(), 3);
}

#[tokio::test]
async fn an_unreachable_replica_is_named() {
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &nowhere().await)]);
    let gateway = Gateway::start(&[&agent]).await;
    let (status, error) = gateway.ask("tiny").await;
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(status, 502);
    assert!(
        message.contains("tiny cannot be reached (job 7 on n1)") && message.contains("refused"),
        "{message}"
    );
}

#[tokio::test]
async fn a_guards_401_is_not_the_clients() {
    let guard = FakeGuard::start(Mode::Status(401)).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guard.base_url)]);
    let gateway = Gateway::start(&[&agent]).await;
    let (status, error) = gateway.ask("tiny").await;
    assert_eq!((status, &error["error"]["code"]), (502, &"model_unusable".into()));
}
