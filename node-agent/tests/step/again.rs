//! Engines that are lost and started again, behind the same port and key.

use slurm_serve::guard_status::{GuardStatus, PATH};
use slurm_serve_proto::v1::{Cause, RunnerFacts, RunnerPhase, StopOrder, agent_message};
use tokio::time::Instant;

use crate::runner::{KEY, MODEL, Run, Wish, tell_stub};
use crate::serving::{chat, streamed};

fn wish(stub: &[(&'static str, &str)], recipe: &str) -> Wish {
    Wish {
        recipe: format!("restart = \"on-failure\"\n{recipe}"),
        ..Wish::stub(stub)
    }
}

/// The engine ends by itself.
async fn lose(run: &Run) {
    tell_stub(&run.engine_socket(), "/_stub/exit", "{\"code\": 1}").await;
}

/// The first facts of this attempt in this phase.
async fn until(run: &Run, attempt: u32, phase: RunnerPhase) -> RunnerFacts {
    let is = move |facts: &&RunnerFacts| facts.attempt == attempt && facts.phase() == phase;
    let what = format!("attempt {attempt} to be {}", phase.as_str_name());
    let told = run
        .agent()
        .until(&what, |told| told.facts.iter().any(|facts| is(&facts)))
        .await;
    told.facts.iter().find(is).expect("just seen").clone()
}

async fn status(run: &Run) -> GuardStatus {
    let answer = slurm_serve::http_client::plain()
        .get(run.url(PATH))
        .bearer_auth(KEY)
        .send();
    let text = answer.await.expect("answered").text().await.expect("text");
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test]
async fn a_lost_engine_is_started_again_behind_the_same_door() {
    let mut run = Run::ready(wish(
        &[("STUB_LEAVE_BEHIND", "1"), ("STUB_CHILD", "1")],
        "restart_pause = \"1s\"",
    ))
    .await;
    let first = run.told.borrow().last();
    assert_eq!((first.attempt, first.last_failure), (1, None));
    let url = run.url("/v1/models");
    let began = Instant::now();
    lose(&run).await;
    let restarting = until(&run, 2, RunnerPhase::Restarting).await;
    let failure = restarting.last_failure.expect("why");
    assert_eq!(failure.cause(), Cause::EngineDied, "{failure:?}");
    assert!(restarting.ending.is_none(), "it does not end");
    let asked = slurm_serve::http_client::plain()
        .get(&url)
        .bearer_auth(KEY)
        .send()
        .await
        .expect("answered");
    assert_eq!(asked.status(), 503);
    assert!(asked.headers().contains_key("retry-after"));
    assert_eq!(status(&run).await.generation, "7.0.2-abc");

    let ready = until(&run, 2, RunnerPhase::Ready).await;
    assert!(began.elapsed().as_secs() >= 1, "after the pause");
    assert_eq!(ready.port, first.port);
    assert_ne!(ready.engine_pid, first.engine_pid);
    let answer = chat(&run, streamed(3)).send().await.expect("answered");
    assert_eq!(answer.status(), 200);
    let told = status(&run).await;
    assert_eq!(
        (told.generation.as_str(), told.state.as_str()),
        ("7.0.2-abc", GuardStatus::READY)
    );
    assert_eq!(crate::runner::session(first.engine_pid as i32), Vec::<i32>::new());
    let log = run.log();
    assert!(
        log.contains(&format!("{MODEL} was lost: ")) && log.contains("attempt 2 of 4 in 1s"),
        "{log}"
    );

    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.gone().await.code(), Some(0));
}

#[tokio::test]
async fn it_is_lost_for_good_once_its_attempts_are_used() {
    let mut run = Run::ready(wish(&[], "restart_pause = \"0s\"\nmax_restarts = 2")).await;
    for attempt in [1, 2, 3] {
        until(&run, attempt, RunnerPhase::Ready).await;
        lose(&run).await;
    }
    assert_eq!(run.gone().await.code(), Some(1));
    let last = run.told.borrow().last();
    assert_eq!((last.attempt, last.phase()), (3, RunnerPhase::Done));
    assert_eq!(last.ending.expect("a reason").cause(), Cause::EngineDied);
}

#[tokio::test]
async fn what_never_came_up_is_not_tried_again() {
    let mut run = Run::start(wish(&[("STUB_DIE_AT", "weights")], "restart_pause = \"0s\""));
    assert_eq!(run.gone().await.code(), Some(1));
    assert_eq!(run.told.borrow().last().attempt, 1);
}

#[tokio::test]
async fn an_attempt_that_fails_while_loading_is_followed_by_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let (script, count) = (folder.path().join("engine"), folder.path().join("count"));
    let (stub, count) = (crate::runner::stub_engine().display(), count.display());
    let text = format!("echo >> {count}\n[ $(wc -l < {count}) = 2 ] && exit 1\nexec {stub} serve \"$@\"\n");
    std::fs::write(&script, text).expect("written");
    let mut wish = wish(&[], "restart_pause = \"0s\"");
    wish.engine = format!("command = [\"/bin/sh\", {script:?}]");
    let mut run = Run::ready(wish).await;
    lose(&run).await;
    // Whoever hears only of the third learns why the second failed.
    let third = until(&run, 3, RunnerPhase::Ready).await;
    assert_eq!(third.last_failure.expect("why").cause(), Cause::EngineDied);
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(run.gone().await.code(), Some(0));
}

#[tokio::test]
async fn who_asks_for_the_end_between_two_attempts_is_heard() {
    let mut run = Run::ready(wish(&[], "restart_pause = \"1h\"")).await;
    lose(&run).await;
    until(&run, 2, RunnerPhase::Restarting).await;
    let stop = StopOrder {
        cause: Cause::Stopped.into(),
    };
    run.agent().say(agent_message::Message::Stop(stop)).await;
    assert_eq!(run.gone().await.code(), Some(0));
    let last = run.told.borrow().last();
    assert_eq!(last.ending.expect("a reason").cause(), Cause::Stopped);
}

#[tokio::test]
async fn a_runner_that_takes_over_goes_on_counting() {
    let mut wish = wish(&[], "restart_pause = \"0s\"\nmax_restarts = 2");
    wish.order.attempt = 3;
    wish.environment = vec![("SLURM_SERVE_GENERATION", "7.0.3-abc".to_owned())];
    let mut run = Run::ready(wish).await;
    assert_eq!(run.told.borrow().last().attempt, 3);
    assert_eq!(status(&run).await.generation, "7.0.3-abc");
    lose(&run).await;
    assert_eq!(run.gone().await.code(), Some(1), "it was the last one");
}
