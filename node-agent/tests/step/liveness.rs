//! Engines that live and answer nothing, and some that only look so.

use std::time::Duration;

use serde_json::json;
use slurm_serve::guard_status::{GuardStatus, PATH};
use slurm_serve_proto::v1::RunnerPhase;

use crate::runner::{KEY, MODEL, Run, Wish, tell_stub, until};
use crate::serving::{chat, streamed};

fn wish(stub: &[(&'static str, &str)]) -> Wish {
    Wish {
        recipe: "unresponsive_after = \"2s\"".into(),
        ..Wish::stub(stub)
    }
}

async fn set(run: &Run, what: serde_json::Value) {
    tell_stub(&run.engine_socket(), "/_stub/set", &what.to_string()).await;
}

async fn until_silent(run: &Run, silent: bool) {
    let what = if silent {
        "it to be silent"
    } else {
        "it to be heard"
    };
    let told = |told: &crate::agent::Told| (told.last().silent_since_ms != 0) == silent;
    let facts = run.agent().until(what, told).await.last();
    assert_eq!(facts.phase(), RunnerPhase::Ready, "nothing has ended");
}

async fn state(run: &Run) -> String {
    let answer = slurm_serve::http_client::plain()
        .get(run.url(PATH))
        .bearer_auth(KEY)
        .send();
    let text = answer.await.expect("answered").text().await.expect("text");
    serde_json::from_str::<GuardStatus>(&text).expect("JSON").state
}

#[tokio::test]
async fn an_idle_engine_that_hangs_is_noticed_and_so_is_its_return() {
    let mut run = Run::ready(wish(&[])).await;
    for hang in ["all", "engine"] {
        let before = slurm_serve::clock::now_ms();
        set(&run, json!({ "hang": hang })).await;
        until_silent(&run, true).await;
        let since = run.told.borrow().last().silent_since_ms;
        assert!(
            since >= before - 2000 && since <= slurm_serve::clock::now_ms() - 2000,
            "{since}"
        );
        assert_eq!(state(&run).await, "unresponsive");
        let refused = chat(&run, streamed(3)).send().await.expect("answered");
        assert_eq!(refused.status(), 503);
        let body = refused.text().await.expect("text");
        assert!(body.contains("model_not_answering"), "{body}");
        set(&run, json!({ "hang": "none" })).await;
        until_silent(&run, false).await;
        assert_eq!(state(&run).await, GuardStatus::READY);
        let answer = chat(&run, streamed(3)).send().await.expect("answered");
        assert_eq!(answer.status(), 200);
    }
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.gone().await.code(), Some(0));
}

#[tokio::test]
async fn an_engine_that_hangs_over_a_request_is_noticed_and_the_request_is_left_to_it() {
    let mut run = Run::ready(wish(&[("STUB_HANG", "none")])).await;
    set(&run, json!({ "hang": "engine" })).await;
    let asked = tokio::spawn(chat(&run, streamed(3)).send());
    until_silent(&run, true).await;
    set(&run, json!({ "hang": "none" })).await;
    let answer = asked.await.expect("joined").expect("answered");
    let text = answer.text().await.expect("all of it");
    assert!(text.contains("[DONE]"), "{text}");
    until_silent(&run, false).await;
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.gone().await.code(), Some(0));
}

#[tokio::test]
async fn a_long_prefill_and_a_long_answer_that_is_not_streamed_are_no_hang() {
    // Three times as long as an engine may be silent; nothing comes through the guard meanwhile.
    let run = Run::ready(wish(&[("STUB_TTFT_MS", "6000"), ("STUB_TOKEN_MS", "1000")])).await;
    let body = json!({"model": MODEL, "max_tokens": 4, "messages": []});
    let answer = chat(&run, body).send().await.expect("answered");
    assert_eq!(answer.status(), 200);
    assert!(
        run.told
            .borrow()
            .facts
            .iter()
            .all(|facts| facts.silent_since_ms == 0)
    );
}

#[tokio::test]
async fn a_frozen_runner_blames_nobody_when_it_wakes() {
    let mut run = Run::ready(wish(&[])).await;
    let engine = run.engine_pid();
    let both = |signal| {
        for pid in [run.pid() as i32, engine] {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("signalled");
        }
    };
    both(nix::sys::signal::Signal::SIGSTOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    both(nix::sys::signal::Signal::SIGCONT);
    let heard = run.told.borrow().facts.len();
    until("some more words of it", async || {
        run.told.borrow().facts.len() > heard + 2
    })
    .await;
    assert!(
        run.told
            .borrow()
            .facts
            .iter()
            .all(|facts| facts.silent_since_ms == 0)
    );
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.gone().await.code(), Some(0));
}
