//! How it ends when somebody asks.

use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_serve_proto::v1::agent_message::Message as ToRunner;
use slurm_serve_proto::v1::{Cause, Released, RunnerPhase, StopOrder};

use crate::runner::{Run, Wish, session};
use crate::serving::{chat, streamed};

#[tokio::test]
async fn what_is_in_flight_is_finished_and_what_is_new_is_refused() {
    let mut wish = Wish::stub(&[
        ("STUB_TOKEN_MS", "20"),
        ("STUB_CHILD", "1"),
        ("STUB_LEAVE_BEHIND", "1"),
    ]);
    wish.releases = false;
    let mut run = Run::ready(wish).await;
    let mut open = chat(&run, streamed(100))
        .send()
        .await
        .expect("answered")
        .bytes_stream();
    open.next().await.expect("a first token").expect("streamed");
    run.signal(Signal::SIGTERM);
    let leaving = run.agent().until_phase(RunnerPhase::Leaving).await;
    assert_eq!(leaving.ending.expect("a reason").cause(), Cause::JobEnded);
    // The catalogs have not let go: requests are served.
    let served = chat(&run, streamed(1)).send().await.expect("answered");
    assert_eq!(served.status(), 200);
    run.agent().say(ToRunner::Released(Released {})).await;
    run.agent().until_phase(RunnerPhase::Draining).await;
    let refused = chat(&run, streamed(1)).send().await.expect("answered");
    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["connection"].to_str().expect("text")
        ),
        (503, "close")
    );
    let mut text = String::new();
    while let Some(chunk) = open.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("streamed to its end")));
    }
    assert!(
        text.trim_end().ends_with("data: [DONE]") && !text.contains("error"),
        "{text}"
    );
    assert!(run.gone().await.success());
}

#[tokio::test]
async fn shared_memory_goes_even_if_the_engine_must_be_killed() {
    let wish = Wish::stub(&[
        ("STUB_CHILD", "1"),
        ("STUB_LEAVE_BEHIND", "1"),
        ("STUB_IGNORE_TERM", "1"),
    ]);
    let mut run = Run::ready(wish).await;
    let engine = run.engine_pid();
    let held = held_by(engine);
    assert!(held.iter().any(|path| path.contains("psm_")), "{held:?}");
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
    for path in held {
        assert!(!std::path::Path::new(&path).exists(), "{path} is left");
    }
}

/// What the engine's processes hold in /dev/shm.
fn held_by(session: i32) -> Vec<String> {
    let maps = |pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut paths: Vec<String> = crate::runner::session(session)
        .into_iter()
        .flat_map(|pid| {
            maps(pid)
                .lines()
                .filter_map(|line| Some(line[line.find("/dev/shm/")?..].to_owned()))
                .collect::<Vec<_>>()
        })
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

#[tokio::test]
async fn the_agent_may_stop_it_and_the_cause_is_kept() {
    let mut run = Run::ready(Wish::default()).await;
    let stop = StopOrder {
        cause: Cause::Stopped as i32,
    };
    run.agent().say(ToRunner::Stop(stop)).await;
    assert!(run.gone().await.success());
    let last = run.told.borrow().last();
    assert_eq!(last.phase(), RunnerPhase::Done);
    assert_eq!(last.ending.expect("a reason").cause(), Cause::Stopped);
}

#[tokio::test]
async fn an_end_while_loading_is_quick_and_clean() {
    let mut run = Run::start(Wish::stub(&[
        ("STUB_LOAD_UNTIL", "/nonexistent/file"),
        ("STUB_CHILD", "1"),
    ]));
    run.agent()
        .until("an engine", |told| told.last().engine_pid != 0)
        .await;
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
    assert!(!run.told.borrow().has_been(RunnerPhase::Ready));
}

#[tokio::test]
async fn an_engine_deaf_to_everything_is_killed_in_time() {
    let mut wish = Wish::stub(&[("STUB_IGNORE_TERM", "1"), ("STUB_TOKEN_MS", "50")]);
    wish.order.end_budget_ms = 3000;
    let mut run = Run::ready(wish).await;
    let mut open = chat(&run, streamed(100_000))
        .send()
        .await
        .expect("answered")
        .bytes_stream();
    open.next().await.expect("a first token").expect("streamed");
    run.signal(Signal::SIGTERM);
    let mut text = String::new();
    while let Some(Ok(chunk)) = open.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(text.contains("engine_broke_off"), "the client is told: {text}");
    assert!(run.gone().await.success());
}

#[tokio::test]
async fn a_signal_to_the_whole_tree_is_an_end_that_was_asked_for() {
    let mut run = Run::ready(Wish::stub(&[("STUB_CHILD", "1")])).await;
    // As proctrack/linuxproc does it: the engine before the runner.
    let engine = run.engine_pid();
    for pid in session(engine) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
    let ending = run.told.borrow().last().ending.expect("a reason");
    assert_eq!(ending.cause(), Cause::JobEnded);
}

#[tokio::test]
async fn without_an_agent_it_ends_all_the_same() {
    let mut run = Run::ready(Wish::default()).await;
    run.agent.take().expect("an agent").die();
    std::fs::remove_file(run.socket()).expect("removed");
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
}

#[tokio::test]
async fn a_users_word_to_his_own_programs_ends_nothing() {
    let mut run = Run::ready(Wish::stub(&[])).await;
    let engine = run.engine_pid();
    for meant in [Signal::SIGUSR1, Signal::SIGUSR2] {
        run.signal(meant);
        // proctrack/linuxproc signals what is below the step's first process as well.
        kill(Pid::from_raw(engine), meant).expect("signalled");
    }
    run.signal(Signal::SIGHUP);
    run.signal(Signal::SIGALRM);
    let served = chat(&run, streamed(1)).send().await.expect("answered");
    assert_eq!(served.status(), 200);
    run.signal(Signal::SIGTERM);
    assert!(run.gone().await.success());
}
