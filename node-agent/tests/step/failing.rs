//! How it ends when nobody asked.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_serve_proto::v1::{Cause, Ending, LaunchOrder, RunnerPhase};
use tokio::sync::watch;
use tonic::Status;

use crate::agent::{Agent, Manners, Told};
use crate::runner::{MODEL, Run, Wish, session, start_runner, tell_stub};
use crate::serving::{chat, streamed};

/// Runs it to its end, which must be a failure told with its reason.
async fn failure(wish: Wish) -> Ending {
    let mut run = Run::start(wish);
    let status = run.gone().await;
    let last = run.told.borrow().last();
    assert_eq!(
        (status.code(), last.phase()),
        (Some(1), RunnerPhase::Done),
        "{last:?}"
    );
    let ending = last.ending.expect("a reason");
    assert!(
        !ending.text.is_empty() && !ending.text.contains('\n'),
        "{ending:?}"
    );
    ending
}

#[tokio::test]
async fn an_engine_that_exits_with_0_while_ready_has_died() {
    for code in ["0", "1"] {
        let mut run = Run::ready(Wish::default()).await;
        tell_stub(
            &run.engine_socket(),
            "/_stub/exit",
            &format!("{{\"code\": {code}}}"),
        )
        .await;
        assert_eq!(run.gone().await.code(), Some(1));
        let ending = run.told.borrow().last().ending.expect("a reason");
        assert_eq!(ending.cause(), Cause::EngineDied, "{ending:?}");
        assert!(ending.wait_status.is_some());
    }
}

#[tokio::test]
async fn the_death_of_the_engine_process_is_noticed_before_the_api_server_ends() {
    let mut run = Run::ready(Wish::stub(&[
        ("STUB_CHILD", "1"),
        ("STUB_TOKEN_MS", "20"),
        ("STUB_ENGINE_DEATH_MS", "600000"),
    ]))
    .await;
    let engine = run.engine_pid();
    let child = session(engine)
        .into_iter()
        .find(|pid| *pid != engine)
        .expect("an engine process");
    let mut open = chat(&run, streamed(100_000))
        .send()
        .await
        .expect("answered")
        .bytes_stream();
    open.next().await.expect("a first token").expect("streamed");
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("killed");
    let leaving = run.agent().until_phase(RunnerPhase::Leaving).await;
    assert_eq!(leaving.ending.expect("a reason").cause(), Cause::EngineDied);
    let mut text = String::new();
    while let Some(chunk) = open.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("a clean end")));
    }
    assert!(text.contains("\"error\""), "{text}");
    assert_eq!(run.gone().await.code(), Some(1));
}

#[tokio::test]
async fn a_request_that_the_engine_breaks_off_gets_a_clean_502() {
    let mut run = Run::ready(Wish::stub(&[("STUB_TOKEN_MS", "20")])).await;
    let body = serde_json::json!({"model": MODEL, "max_tokens": 100_000, "messages": []});
    let waiting = tokio::spawn(chat(&run, body).send());
    run.agent()
        .until("one in flight", |told| told.last().in_flight == 1)
        .await;
    kill(Pid::from_raw(run.engine_pid()), Signal::SIGKILL).expect("killed");
    let answer = waiting.await.expect("joined").expect("answered");
    assert_eq!(answer.status(), 502);
    let body: serde_json::Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    assert_eq!(body["error"]["code"], "engine_broke_off");
    assert_eq!(run.gone().await.code(), Some(1));
}

#[tokio::test]
async fn an_engine_that_dies_while_loading_is_explained() {
    let ending = failure(Wish::stub(&[("STUB_DIE_AT", "weights"), ("STUB_CHILD", "1")])).await;
    assert_eq!(ending.cause(), Cause::EngineDied, "{ending:?}");
    assert!(!ending.log_tail.is_empty() && ending.log_path.ends_with("serve-7.log"));
}

#[tokio::test]
async fn what_can_be_known_before_loading_is_said_at_once() {
    let with = |recipe: &str| Wish {
        recipe: recipe.into(),
        ..Wish::default()
    };
    let engine = |engine: &str| Wish {
        engine: engine.into(),
        ..Wish::default()
    };
    assert_eq!(failure(with("gpus = 2")).await.cause(), Cause::TooFewGpus);
    assert_eq!(
        failure(with("source = \"/nowhere/weights\"")).await.cause(),
        Cause::WeightsMissing
    );
    assert_eq!(
        failure(engine("command = [\"no-such-vllm\", \"serve\"]"))
            .await
            .cause(),
        Cause::EngineNotFound
    );
    assert_eq!(
        failure(with("min_engine_version = \"99.0\"")).await.cause(),
        Cause::EngineTooOld
    );
    let no_port = failure(Wish {
        has_port: false,
        ..Wish::default()
    });
    let no_port = no_port.await;
    assert_eq!(no_port.cause(), Cause::NoPort);
    assert!(no_port.text.ends_with("over: there is none"), "{no_port:?}");
}

#[tokio::test]
async fn a_deadline_is_kept() {
    let wish = Wish {
        recipe: "ready_timeout = \"1s\"".into(),
        ..Wish::stub(&[("STUB_LOAD_UNTIL", "/nonexistent/file")])
    };
    assert_eq!(failure(wish).await.cause(), Cause::ReadyDeadline);
}

#[tokio::test]
async fn an_engine_that_cannot_do_the_work_is_not_ready() {
    let ending = failure(Wish::stub(&[("STUB_REQUEST_STATUS", "400")])).await;
    assert_eq!(ending.cause(), Cause::InvalidRequest);
    assert!(ending.hint.contains("task"), "{ending:?}");
}

#[tokio::test]
async fn a_runner_that_nobody_knows_ends_with_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    for status in [
        Status::not_found("no such launch"),
        Status::permission_denied("no"),
    ] {
        let manners = Manners {
            order: LaunchOrder::default(),
            releases: true,
            refuses: Some(status),
            has_port: true,
        };
        let _agent = Agent::start(&socket, manners, &watch::Sender::new(Told::default()));
        let mut child = start_runner(&socket, &[]);
        let end = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = child.try_wait().expect("waited") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(status.code(), Some(1));
    }
}
