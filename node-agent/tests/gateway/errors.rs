//! What a client is told that asks for what cannot be had.

use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use slurm_serve_proto::v1::ModelState::{Failed, Loading, Ready};
use slurm_serve_proto::v1::{Cause, Ending};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fake_agent::{FakeAgent, model};
use crate::fake_guard::{FakeGuard, Mode};
use crate::harness::{Gateway, LONG, in_time};

#[tokio::test]
async fn each_state_has_its_own_answer() {
    let mut loading = model("gpt-oss-120b", "l", Loading, "");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    loading.state_since_ms = i64::try_from(now.as_millis()).unwrap() - 40_000;
    let mut failed = model("ada/broken", "f", Failed, "");
    failed.ending = Some(Ending {
        cause: Cause::WeightsMissing.into(),
        text: "/models/x is not there".into(),
        ..Ending::default()
    });
    let agent = FakeAgent::start("n1", LONG, vec![loading, failed]);
    let gateway = Gateway::start(&[&agent]).await;

    let answer = gateway.chat("gpt-oss-120b").send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    let error: serde_json::Value = answer.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("gpt-oss-120b is loading, 4") && message.ends_with(" s so far"),
        "{message}"
    );

    let (status, error) = gateway.ask("ada/broken").await;
    assert_eq!((status, &error["error"]["code"]), (424, &"model_failed".into()));
    assert_eq!(
        error["error"]["message"],
        "ada/broken has failed (job 7 on n1): /models/x is not there"
    );

    let (status, error) = gateway.ask("gpt-oss-12b").await;
    assert_eq!((status, &error["error"]["param"]), (404, &"model".into()));
    assert_eq!(
        error["error"]["message"],
        "no such model \"gpt-oss-12b\"; there are gpt-oss-120b"
    );
}

#[tokio::test]
async fn bad_requests_are_told_what_is_wrong() {
    let agent = FakeAgent::start("n1", LONG, vec![]);
    let gateway = Gateway::start(&[&agent]).await;
    let post = |path: &str, body: &'static str| gateway.client.post(gateway.url(path)).body(body).send();
    for (path, body, status) in [
        ("/v1/chat/completions", "", 400),
        ("/v1/chat/completions", "{\"model\":", 400),
        ("/v1/chat/completions", "{}", 400),
        ("/v1/chat/completions", "{\"model\":\"a\",\"model\":\"b\"}", 400),
        ("/v1/chat/completions", "{\"model\":\"a\"}", 404),
        ("/v1/chat/completions/", "{\"model\":\"a\"}", 404),
        ("/tokenize", "{\"model\":\"a\"}", 404),
        ("/v1/models", "{}", 405),
    ] {
        let answer = post(path, body).await.unwrap();
        assert_eq!(answer.status(), status, "{path} {body}");
        let error: serde_json::Value = answer.json().await.unwrap();
        assert!(error["error"]["message"].is_string(), "{path} {body}: {error}");
    }
}

#[tokio::test]
async fn what_is_announced_as_too_long_is_refused_before_it_comes() {
    let agent = FakeAgent::start("n1", LONG, vec![]);
    let gateway = Gateway::start(&[&agent]).await;
    let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    stream
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        .await
        .unwrap();
    let mut head = [0; 12];
    in_time("the answer", stream.read_exact(&mut head)).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
}

#[tokio::test]
async fn with_a_key_file_only_its_keys_let_in() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guard.base_url)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "let-me-in\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let gateway = Gateway::with(&[&agent], |config| config.gateway.key_file = path.clone()).await;
    agent.acknowledged(100).await;

    for open in [
        "/v1/models",
        "/v1/models/tiny",
        "/slurm-serve/v1/models",
        "/nothing",
    ] {
        assert_eq!(gateway.get(open).await.0, 401, "{open}");
    }
    assert_eq!(gateway.get("/health").await.0, 200);
    let (status, error) = gateway.ask("tiny").await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (401, &"invalid_api_key".into())
    );
    assert!(guard.seen().is_empty());

    let answer = gateway
        .chat("tiny")
        .bearer_auth("let-me-in")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(guard.seen()[0].headers["authorization"], "Bearer key-a");
}

#[tokio::test]
async fn settings_that_cannot_hold_end_it_at_once_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "let-me-in\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = Gateway::with(&[], |config| config.gateway.key_file = path.clone())
        .await
        .ended()
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("chmod 0600") && !error.to_string().contains('\n'),
        "{error}"
    );
    let error = Gateway::with(&[], |config| config.gateway.agents = vec!["n1".into()])
        .await
        .ended()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("NODE=HOST:PORT"), "{error}");
}

#[tokio::test]
async fn without_slurm_and_agents_it_serves_and_says_that_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::with(&[], |config| config.agent.slurm_bin_dir = folder.path().into()).await;
    let (status, error) = gateway.ask("tiny").await;
    assert_eq!((status, &error["error"]["code"]), (503, &"no_agents".into()));
}

#[tokio::test]
async fn slurms_nodes_are_watched_and_those_that_vanish_no_longer() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = folder.path().join("nodes");
    let sinfo = folder.path().join("sinfo");
    std::fs::write(&nodes, "n1 127.0.0.1\nn1 127.0.0.1\nn2 127.0.0.2\n").unwrap();
    let asked = folder.path().join("asked");
    let script = format!(
        "#!/bin/sh\necho >> {}\nexec cat {}\n",
        asked.display(),
        nodes.display()
    );
    std::fs::write(&sinfo, script).unwrap();
    std::fs::set_permissions(&sinfo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let gateway = Gateway::with(&[], |config| {
        config.agent.slurm_bin_dir = folder.path().into();
        config.gateway.discover_interval = std::time::Duration::from_millis(20);
        // Nobody listens there: it is enough that they are tried.
        config.gateway.agent_port = 1;
    })
    .await;
    let agents = async || {
        let (_, listing) = gateway.get("/slurm-serve/v1/models").await;
        let agents = listing["agents"].as_array().unwrap().clone();
        agents
            .iter()
            .map(|a| a["node"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    crate::harness::until("both nodes", async || agents().await == ["n1", "n2"]).await;
    std::fs::write(&nodes, "n2 127.0.0.2\nn3 127.0.0.3\n").unwrap();
    crate::harness::until("the change", async || agents().await == ["n2", "n3"]).await;
    // A list that is suddenly empty is not believed.
    std::fs::write(&nodes, "").unwrap();
    let times = || std::fs::read(&asked).unwrap().len();
    let before = times();
    // One that was asked before the change may still be on its way; the third has seen it, and the second was acted upon.
    crate::harness::until("being asked again", async || times() >= before + 3).await;
    assert_eq!(agents().await, ["n2", "n3"]);
}
