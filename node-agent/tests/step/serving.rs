//! Up to READY, and what the guard lets through.

use std::time::Duration;

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use slurm_serve::guard_status::{GuardStatus, PATH};
use slurm_serve_proto::v1::RunnerPhase;

use crate::agent::{Agent, SECRET};
use crate::runner::{KEY, MODEL, Run, Wish, ask_stub, until};

pub fn chat(run: &Run, body: Value) -> reqwest::RequestBuilder {
    slurm_serve::http_client::plain()
        .post(run.url("/v1/chat/completions"))
        .bearer_auth(KEY)
        .json(&body)
}

pub fn streamed(max_tokens: u32) -> Value {
    json!({"model": MODEL, "stream": true, "max_tokens": max_tokens,
           "messages": [{"role": "user", "content": "Hi"}]})
}

#[tokio::test]
async fn a_model_comes_up_answers_and_goes() {
    let mut run = Run::ready(Wish::stub(&[("STUB_CHILD", "1"), ("STUB_LOAD_MS", "100")])).await;
    let told = run.told.borrow().clone();
    let hello = &told.hellos[0];
    assert_eq!((hello.job_id, hello.generation.as_str()), (7, "7.0.1-abc"));
    assert!(told.has_been(RunnerPhase::Starting) || told.has_been(RunnerPhase::Loading));
    assert_eq!(told.last().engine_version, "0.32.0+stub");
    assert!(told.last().log_path.ends_with("/logs/serve-7.log"));

    let answer = chat(&run, streamed(5)).send().await.expect("answered");
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.expect("streamed");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");

    let models: Value = serde_json::from_str(
        &slurm_serve::http_client::plain()
            .get(run.url("/v1/models"))
            .bearer_auth(KEY)
            .send()
            .await
            .expect("answered")
            .text()
            .await
            .expect("text"),
    )
    .expect("JSON");
    assert_eq!(models["data"][0]["id"], MODEL);

    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
    let told = run.told.borrow().clone();
    assert!(told.has_been(RunnerPhase::Leaving) && told.last().phase() == RunnerPhase::Done);
    assert_eq!(told.last().requests, 2);
    let log = run.log();
    assert!(
        log.contains("slurm-serve: ada/tiny as:") && log.contains("has ended"),
        "{log}"
    );
    assert!(!log.contains(KEY));
    assert!(
        told.lines.iter().any(|line| line.contains("has ended")),
        "the last line is told too"
    );
}

#[tokio::test]
async fn only_the_key_and_the_listed_paths_lead_in() {
    let run = Run::ready(Wish::default()).await;
    let client = slurm_serve::http_client::plain();
    for path in ["/v1/models", "/metrics", "/v1/chat/completions", "/nowhere"] {
        for key in [None, Some("sk-test-0123456789abcdeg"), Some("")] {
            let mut request = client.get(run.url(path));
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            let answer = request.send().await.expect("answered");
            assert_eq!(answer.status(), 401, "{path} with {key:?}");
            let body: Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
            assert_eq!(body["error"]["code"], "invalid_api_key");
        }
    }
    // Whether it takes requests is no secret; nothing else is said.
    let health = client.get(run.url("/health")).send().await.expect("answered");
    assert_eq!(health.status(), 200);
    assert_eq!(health.text().await.expect("text"), "");
    for path in [
        "/metrics",
        "/tokenize",
        "/pause",
        "/_stub/state",
        "/v1/models/../../metrics",
        "/docs",
    ] {
        let answer = client
            .post(run.url(path))
            .bearer_auth(KEY)
            .send()
            .await
            .expect("answered");
        assert_eq!(answer.status().as_u16() / 100, 4, "{path}");
        assert!(
            matches!(answer.status().as_u16(), 404 | 405),
            "{path}: {}",
            answer.status()
        );
    }
    let answer = client
        .get(run.url("/v1/chat/completions"))
        .bearer_auth(KEY)
        .send()
        .await;
    assert_eq!(answer.expect("answered").status(), 405);
}

/// Not for strangers either, and at any time: nobody asks the engine.
#[tokio::test]
async fn the_guard_says_which_launch_it_is_and_how_it_stands() {
    let gate = tempfile::tempdir().expect("a folder");
    let gate = gate.path().join("go");
    let mut run = Run::start(Wish::stub(&[("STUB_LOAD_UNTIL", gate.to_str().expect("a path"))]));
    run.agent().until("a port", |told| told.last().port != 0).await;
    let url = run.url(PATH);
    let ask = || slurm_serve::http_client::plain().get(&url);
    assert_eq!(ask().send().await.expect("answered").status(), 401);
    let status = async || {
        let answer = ask().bearer_auth(KEY).send().await.expect("answered");
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.expect("text");
        let status: GuardStatus = serde_json::from_str(&text).expect("a status");
        assert_eq!(
            (status.model.as_str(), status.generation.as_str()),
            (MODEL, "7.0.1-abc")
        );
        status.state
    };
    assert_eq!(status().await, "loading");
    std::fs::write(&gate, "").expect("the gate");
    run.agent()
        .until("ready", |told| told.has_been(RunnerPhase::Ready))
        .await;
    assert_eq!(status().await, GuardStatus::READY);
    let posted = slurm_serve::http_client::plain()
        .post(&url)
        .bearer_auth(KEY)
        .send()
        .await;
    assert_eq!(posted.expect("answered").status(), 405);
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
}

#[tokio::test]
async fn the_engine_never_sees_the_key() {
    let run = Run::ready(Wish::default()).await;
    let answer = chat(&run, streamed(1))
        .header("x-request-id", "r1")
        .send()
        .await
        .expect("answered");
    assert_eq!(answer.status(), 200);
    let requests = ask_stub(&run.engine_socket(), "/_stub/requests").await;
    assert!(requests.contains("r1") && !requests.contains(KEY), "{requests}");
    let environment = std::fs::read(format!("/proc/{}/environ", run.engine_pid())).expect("environ");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(
        !environment.contains("SLURM_SERVE_") && !environment.contains(KEY),
        "{environment}"
    );
    assert!(environment.contains("VLLM_PORT=18200") && environment.contains("SLURM_JOB_ID=7"));
}

#[tokio::test]
async fn whoever_never_shows_the_key_does_not_keep_a_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let run = Run::ready(Wish::default()).await;
    let port = run.told.borrow().last().port as u16;
    let mut silent = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("connected");
    let mut slow = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("connected");
    slow.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n")
        .await
        .expect("written");
    for stream in [&mut silent, &mut slow] {
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        closed.expect("closed").expect("read to the end");
    }
}

#[tokio::test]
async fn while_loading_the_port_says_so() {
    let gate = tempfile::tempdir().expect("a folder");
    let gate = gate.path().join("go");
    let run = Run::start(Wish::stub(&[("STUB_LOAD_UNTIL", gate.to_str().expect("a path"))]));
    run.agent().until("a port", |told| told.last().port != 0).await;
    let answer = chat(&run, streamed(1)).send().await.expect("answered");
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(answer.headers()["connection"], "close");
    let body: Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    assert_eq!(body["error"]["message"], "ada/tiny is loading");
    run.signal(Signal::SIGTERM);
    let mut run = run;
    assert!(run.gone().await.success());
}

#[tokio::test]
async fn a_large_body_passes_in_bounded_memory() {
    const MIB: usize = 1 << 20;
    let run = Run::ready(Wish::default()).await;
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.pid())).expect("status");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .expect("VmHWM");
        line.split_whitespace()
            .nth(1)
            .expect("kB")
            .parse::<usize>()
            .expect("a number")
            / 1024
    };
    let before = resident();
    let chunk = bytes::Bytes::from(vec![b' '; MIB]);
    let chunks = futures_util::stream::iter((0..256).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
    let answer = slurm_serve::http_client::plain()
        .post(run.url("/v1/chat/completions"))
        .bearer_auth(KEY)
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(chunks))
        .send()
        .await
        .expect("answered");
    assert_eq!(
        answer.headers()["x-stub-body-bytes"],
        (256 * MIB).to_string().as_str()
    );
    let grown = resident() - before;
    assert!(grown < 24, "256 MiB passed and the runner grew by {grown} MiB");
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_from_the_engine_too() {
    let run = Run::ready(Wish::stub(&[("STUB_TOKEN_MS", "20")])).await;
    let socket = run.engine_socket();
    let running = || async { ask_stub(&socket, "/metrics").await };
    let mut stream = chat(&run, streamed(100_000))
        .send()
        .await
        .expect("answered")
        .bytes_stream();
    stream.next().await.expect("a first token").expect("streamed");
    assert!(has_running(&running().await, 1));
    run.agent()
        .until("one in flight", |told| told.last().in_flight == 1)
        .await;
    drop(stream);
    until("the engine to notice", || async {
        has_running(&running().await, 0)
    })
    .await;
    // And one that leaves before there was any answer.
    let waiting = tokio::spawn(
        chat(
            &run,
            json!({"model": MODEL, "max_tokens": 100_000, "messages": []}),
        )
        .send(),
    );
    until("the request to run", || async {
        has_running(&running().await, 1)
    })
    .await;
    waiting.abort();
    until("the engine to notice", || async {
        has_running(&running().await, 0)
    })
    .await;
    run.agent()
        .until("none in flight", |told| told.last().in_flight == 0)
        .await;
}

fn has_running(metrics: &str, number: u32) -> bool {
    metrics
        .lines()
        .any(|line| line.starts_with("vllm:num_requests_running") && line.ends_with(&format!(" {number}.0")))
}

#[tokio::test]
async fn an_agent_that_was_killed_is_found_again_and_nothing_stops() {
    let mut run = Run::ready(Wish::stub(&[("STUB_TOKEN_MS", "20")])).await;
    let engine = run.engine_pid();
    let mut stream = chat(&run, streamed(100))
        .send()
        .await
        .expect("answered")
        .bytes_stream();
    stream.next().await.expect("a first token").expect("streamed");
    run.agent.take().expect("an agent").die();

    let agent = Agent::start(&run.socket(), run.manners.clone(), &run.told);
    let told = agent.until("a second hello", |told| told.hellos.len() > 1).await;
    let hello = &told.hellos[1];
    assert_eq!((hello.secret.as_str(), hello.nonce.as_str()), (SECRET, ""));
    let facts = hello.facts.clone().expect("present facts");
    assert_eq!(
        (facts.phase(), facts.engine_pid as i32),
        (RunnerPhase::Ready, engine)
    );
    let told = agent.until("the port", |told| !told.came_back.is_empty()).await;
    assert_eq!(
        (told.came_back, told.handed),
        (vec![facts.port as u16], vec![facts.port as u16])
    );

    let mut text = String::new();
    while let Some(chunk) = stream.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("streamed")));
    }
    assert!(text.trim_end().ends_with("data: [DONE]"));
    run.agent = Some(agent);
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
}
