//! What is passed on, and how.

use bytes::Bytes;
use slurm_serve_proto::v1::ModelState::Ready;
use tokio_stream::StreamExt;

use crate::fake_agent::{FakeAgent, model};
use crate::fake_guard::{FakeGuard, Mode};
use crate::harness::{Gateway, LONG, in_time};

async fn one(mode: Mode) -> (FakeGuard, FakeAgent, Gateway) {
    let guard = FakeGuard::start(mode).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("ada/tiny", "a", Ready, &guard.base_url)]);
    let gateway = Gateway::start(&[&agent]).await;
    (guard, agent, gateway)
}

#[tokio::test]
async fn a_request_arrives_unchanged_with_the_replicas_key_and_never_the_clients() {
    let (guard, _agent, gateway) = one(Mode::Answer).await;
    let body = "{ \"messages\" : [1e5], \"model\":\"ada/tiny\", \"x\":\"\\u00e4\" }\n";
    let request = gateway
        .client
        .post(gateway.url("/v1/chat/completions?a=b%20c"))
        .header("authorization", "Bearer clients-own")
        .header("x-request-id", "77")
        .body(body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    for (header, value) in [
        ("x-slurm-serve-owner", "ada"),
        ("x-slurm-serve-node", "n1"),
        ("x-slurm-serve-job", "7"),
    ] {
        assert_eq!(answer.headers()[header], value);
    }
    assert_eq!(answer.text().await.unwrap(), r#"{"ok":true}"#);
    let seen = guard.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].path, "/v1/chat/completions?a=b%20c");
    assert_eq!(seen[0].body, body);
    assert_eq!(seen[0].headers["authorization"], "Bearer key-a");
    assert_eq!(seen[0].headers["x-request-id"], "77");
    assert!(!format!("{seen:?}").contains("clients-own"));
}

#[tokio::test]
async fn events_are_streamed_as_they_come() {
    let (mut guard, _agent, gateway) = one(Mode::Stream).await;
    let asking = tokio::spawn(gateway.chat("ada/tiny").send());
    let feed = guard.stream().await;
    let mut events = in_time("the head", asking).await.unwrap().unwrap().bytes_stream();
    for number in 0..3 {
        let event = Bytes::from(format!("data: {number}\n\n"));
        feed.send(Ok(event.clone())).await.unwrap();
        // The next one isn't sent before this one has arrived.
        let arrived = in_time("an event", events.next()).await.unwrap().unwrap();
        assert_eq!(arrived, event);
    }
    drop(feed);
    assert!(in_time("the end", events.next()).await.is_none());
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_is_noticed_by_the_guard() {
    let (mut guard, _agent, gateway) = one(Mode::Stream).await;
    let asking = tokio::spawn(gateway.chat("ada/tiny").send());
    let feed = guard.stream().await;
    let mut events = in_time("the head", asking).await.unwrap().unwrap().bytes_stream();
    feed.send(Ok(Bytes::from_static(b"data: 0\n\n"))).await.unwrap();
    in_time("an event", events.next()).await.unwrap().unwrap();
    drop(events);
    in_time("the guard's notice", feed.closed()).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_is_noticed_by_the_guard() {
    let (guard, _agent, gateway) = one(Mode::Hang).await;
    let asking = tokio::spawn(gateway.chat("ada/tiny").send());
    guard.hanging(1).await;
    asking.abort();
    guard.hanging(0).await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_event_that_says_so_and_not_cleanly() {
    let (mut guard, _agent, gateway) = one(Mode::Stream).await;
    let asking = tokio::spawn(gateway.chat("ada/tiny").send());
    let feed = guard.stream().await;
    let mut events = in_time("the head", asking).await.unwrap().unwrap().bytes_stream();
    feed.send(Ok(Bytes::from_static(b"data: 0"))).await.unwrap();
    in_time("half an event", events.next()).await.unwrap().unwrap();
    feed.send(Err(std::io::Error::other("engine died")))
        .await
        .unwrap();
    let mut rest = Vec::new();
    let broke = loop {
        match in_time("the rest", events.next()).await {
            Some(Ok(bytes)) => rest.extend_from_slice(&bytes),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    let rest = String::from_utf8(rest).unwrap();
    let json = rest.trim().strip_prefix("data: ").expect("an event");
    let error: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(error["error"]["code"], "stream_broken");
    assert!(
        broke,
        "a client that knows no such event must not take it for whole"
    );
}

#[tokio::test]
async fn requests_are_balanced_by_those_in_flight() {
    let (mut one, mut two) = (
        FakeGuard::start(Mode::Stream).await,
        FakeGuard::start(Mode::Stream).await,
    );
    let agent_one = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &one.base_url)]);
    let agent_two = FakeAgent::start("n2", LONG, vec![model("tiny", "b", Ready, &two.base_url)]);
    let gateway = Gateway::start(&[&agent_one, &agent_two]).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        let asking = tokio::spawn(gateway.chat("tiny").send());
        let feed = tokio::select! {
            feed = one.stream() => feed,
            feed = two.stream() => feed,
        };
        open.push((
            feed,
            in_time("the head", asking).await.unwrap().unwrap().bytes_stream(),
        ));
    }
    assert_eq!((one.seen().len(), two.seen().len()), (5, 5));
}

#[tokio::test]
async fn a_large_body_is_passed_on_whole() {
    let (guard, _agent, gateway) = one(Mode::Answer).await;
    let body = format!(
        r#"{{"messages":[{{"content":"{}"}}],"model":"ada/tiny"}}"#,
        "x".repeat(20 << 20)
    );
    let request = gateway
        .client
        .post(gateway.url("/v1/chat/completions"))
        .body(body.clone());
    assert_eq!(request.send().await.unwrap().status(), 200);
    assert!(guard.seen()[0].body == body);
}

#[tokio::test]
async fn an_audio_form_goes_to_the_model_it_names() {
    let (guard, _agent, gateway) = one(Mode::Answer).await;
    let body = "--XY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\0\r\n--XY\r\n\
        Content-Disposition: form-data; name=\"model\"\r\n\r\nada/tiny\r\n--XY--\r\n";
    let request = gateway
        .client
        .post(gateway.url("/v1/audio/transcriptions"))
        .header("content-type", "multipart/form-data; boundary=XY")
        .body(body);
    assert_eq!(request.send().await.unwrap().status(), 200);
    assert_eq!(guard.seen()[0].body, body);
}

#[tokio::test]
async fn told_to_end_it_finishes_what_is_in_flight() {
    let (mut guard, _agent, mut gateway) = one(Mode::Stream).await;
    let asking = tokio::spawn(gateway.chat("ada/tiny").send());
    let feed = guard.stream().await;
    let mut events = in_time("the head", asking).await.unwrap().unwrap().bytes_stream();
    gateway.stop();
    crate::harness::until("the port being closed", async || {
        tokio::net::TcpStream::connect(gateway.address).await.is_err()
    })
    .await;
    feed.send(Ok(Bytes::from_static(b"data: last\n\n")))
        .await
        .unwrap();
    drop(feed);
    assert_eq!(
        in_time("the last event", events.next()).await.unwrap().unwrap(),
        "data: last\n\n"
    );
    assert!(in_time("the end", events.next()).await.is_none());
    gateway.ended().await.unwrap();
}
