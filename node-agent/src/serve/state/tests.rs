//! Single lives, told as stories.

use super::*;

fn of(event: RunEvent) -> Event {
    Event::Of(1, event)
}

fn says(phase: RunnerPhase) -> Event {
    of(RunEvent::Facts(Box::new(Facts {
        phase,
        ..Facts::default()
    })))
}

fn ends(phase: RunnerPhase, ending: Ending) -> Event {
    of(RunEvent::Facts(Box::new(Facts {
        phase,
        ending: Some(ending),
        ..Facts::default()
    })))
}

fn silent(silent: bool) -> Event {
    of(RunEvent::Facts(Box::new(Facts {
        phase: RunnerPhase::Ready,
        silent,
        ..Facts::default()
    })))
}

fn loaded(life: &mut Life) {
    life.step(Event::Start);
    life.step(of(RunEvent::Attached));
    life.step(says(RunnerPhase::Loading));
    life.step(says(RunnerPhase::Ready));
}

fn ready() -> Life {
    let mut life = Life::new(1);
    loaded(&mut life);
    assert_eq!(life.state, ModelState::Ready);
    life
}

/// Ready, and to be tried three times.
fn hardy() -> Life {
    let mut life = Life::new(3);
    loaded(&mut life);
    life
}

fn died() -> Ending {
    failure(Cause::EngineDied, "exit 0", "")
}

fn restarts(attempt: u32, phase: RunnerPhase) -> Event {
    of(RunEvent::Facts(Box::new(Facts {
        phase,
        attempt,
        last_failure: Some(died()),
        ..Facts::default()
    })))
}

#[test]
fn the_straight_way() {
    let mut life = Life::new(1);
    assert_eq!(
        life.step(Event::Start),
        [Action::StartStep, Action::ArmLaunchDeadline]
    );
    assert_eq!(life.step(of(RunEvent::Attached)), [Action::SendOrder]);
    assert_eq!(life.step(says(RunnerPhase::Loading)), []);
    assert_eq!(life.state, ModelState::Loading);
    life.step(says(RunnerPhase::Ready));
    assert_eq!(
        life.step(Event::Stop(Cause::Stopped)),
        [Action::SendStop(Cause::Stopped), Action::AwaitRelease]
    );
    assert_eq!(life.state, ModelState::Draining);
    assert_eq!(life.step(Event::Released), [Action::SendReleased]);
    let done = life.step(ends(RunnerPhase::Done, asked_ending(Cause::JobEnded)));
    assert_eq!(done, [Action::KillStep, Action::Close { failed: false }]);
    assert_eq!(life.ending.unwrap().cause(), Cause::Stopped);
}

#[test]
fn a_failure_that_ends_its_job_stays_a_failure() {
    for last in [says(RunnerPhase::Done), Event::JobEnded] {
        let mut life = ready();
        life.step(ends(RunnerPhase::Leaving, died()));
        life.step(Event::Stop(Cause::JobEnded));
        life.step(last);
        assert_eq!(
            (life.state, life.ending.unwrap().cause()),
            (ModelState::Failed, Cause::EngineDied)
        );
    }
}

#[test]
fn an_engine_that_exits_with_zero_has_failed() {
    let mut life = ready();
    assert_eq!(
        life.step(ends(RunnerPhase::Leaving, died())),
        [Action::AwaitRelease]
    );
    assert_eq!(
        life.step(says(RunnerPhase::Done)),
        [Action::KillStep, Action::Close { failed: true }]
    );
    assert_eq!(
        (life.state, life.ending.unwrap().cause()),
        (ModelState::Failed, Cause::EngineDied)
    );
}

#[test]
fn a_broken_stream_ends_nothing_by_itself() {
    let mut life = ready();
    assert_eq!(life.step(of(RunEvent::Detached)), [Action::ArmRunnerDeadline]);
    assert_eq!(life.state, ModelState::Ready);
    life.step(of(RunEvent::Attached));
    assert_eq!(life.step(of(RunEvent::RunnerDeadline)), []);
    assert_eq!(life.state, ModelState::Ready);
    life.step(of(RunEvent::Detached));
    life.step(of(RunEvent::RunnerDeadline));
    assert_eq!(life.state, ModelState::Failed);
}

#[test]
fn a_step_is_tried_again_a_bounded_number_of_times() {
    let mut life = Life::new(9);
    life.step(Event::Start);
    let refused = || {
        of(RunEvent::StepRefused {
            text: "pending".into(),
            passing: true,
        })
    };
    let retries = (0..20)
        .filter(|_| life.step(refused()) == [Action::RetryStep])
        .count();
    assert_eq!(retries as u32, STEP_ATTEMPTS - 1);
    assert_eq!(life.state, ModelState::Failed);
}

#[test]
fn a_stop_while_the_runner_is_away_reaches_it_when_it_is_back() {
    let mut life = ready();
    life.step(of(RunEvent::Detached));
    assert_eq!(
        life.step(Event::Stop(Cause::JobEnded)),
        [Action::ArmRunnerDeadline]
    );
    assert_eq!(
        life.step(of(RunEvent::Attached)),
        [Action::SendStop(Cause::JobEnded), Action::AwaitRelease]
    );
}

#[test]
fn a_model_near_its_jobs_end_retires_and_comes_back_if_the_end_is_put_off() {
    let mut life = ready();
    assert_eq!(life.step(Event::EndNear(true)), []);
    assert_eq!(life.state, ModelState::Retiring);
    life.step(says(RunnerPhase::Ready));
    assert_eq!(
        life.state,
        ModelState::Retiring,
        "its runner goes on saying that it is ready"
    );
    life.step(Event::EndNear(false));
    assert_eq!(life.state, ModelState::Ready);

    let mut late = Life::new(1);
    late.step(Event::EndNear(true));
    loaded(&mut late);
    assert_eq!(
        late.state,
        ModelState::Retiring,
        "one that is ready only then never gets there"
    );
    assert_eq!(
        late.step(Event::Stop(Cause::JobEnded)),
        [Action::SendStop(Cause::JobEnded), Action::AwaitRelease]
    );
}

#[test]
fn a_silent_engine_and_a_frozen_runner_leave_and_come_back_each_for_itself() {
    let mut life = ready();
    life.step(silent(true));
    assert_eq!(life.state, ModelState::Unresponsive);
    life.step(of(RunEvent::Quiet));
    life.step(of(RunEvent::Heard));
    assert_eq!(life.state, ModelState::Unresponsive, "the engine is silent still");
    life.step(Event::EndNear(true));
    life.step(silent(false));
    assert_eq!(life.state, ModelState::Retiring);
    life.step(Event::EndNear(false));
    life.step(of(RunEvent::Quiet));
    assert_eq!(life.state, ModelState::Unresponsive);
    life.step(of(RunEvent::Attached));
    assert_eq!(life.state, ModelState::Ready, "a runner that comes back is heard");
}

#[test]
fn an_engine_that_is_started_again_by_its_runner_is_another_attempt() {
    let mut life = hardy();
    assert_eq!(
        life.step(restarts(2, RunnerPhase::Restarting)),
        [Action::NewAttempt]
    );
    assert_eq!(
        (life.state, life.attempt, life.run),
        (ModelState::Restarting, 2, 1)
    );
    assert_eq!(life.last_failure, Some(died()));
    life.step(says(RunnerPhase::Ready));
    assert_eq!(
        life.step(restarts(1, RunnerPhase::Loading)),
        [],
        "what an attempt that is over says changes nothing"
    );
    assert_eq!(life.state, ModelState::Ready);
    life.step(restarts(3, RunnerPhase::Loading));
    assert_eq!((life.state, life.attempt), (ModelState::Loading, 3));
    assert_eq!(
        life.step(restarts(4, RunnerPhase::Loading)),
        [Action::KillStep, Action::Close { failed: true }],
        "one more than it may"
    );
}

#[test]
fn a_lost_runner_is_another_attempt_by_another_step() {
    let mut life = hardy();
    assert_eq!(
        life.step(of(RunEvent::RunnerDied)),
        [Action::KillStep, Action::NewAttempt, Action::RestartLater]
    );
    assert_eq!(
        (life.state, life.attempt, life.run),
        (ModelState::Restarting, 2, 2)
    );
    for late in [
        RunEvent::Attached,
        RunEvent::StepExited,
        RunEvent::Facts(Box::new(Facts {
            phase: RunnerPhase::Done,
            ..Facts::default()
        })),
    ] {
        let before = life.clone();
        assert_eq!(life.step(of(late)), []);
        assert_eq!(life, before, "of the first run, and too late");
    }
    assert_eq!(
        life.step(Event::Restart),
        [Action::StartStep, Action::ArmLaunchDeadline]
    );
    assert_eq!(life.step(Event::Restart), [], "once");
    assert_eq!(life.step(Event::Of(2, RunEvent::Attached)), [Action::SendOrder]);
    assert_eq!(Life::recovered(life.kept()).state, ModelState::Launching);
}

#[test]
fn what_never_came_up_or_was_tried_often_enough_is_lost_for_good() {
    let mut life = Life::new(3);
    life.step(Event::Start);
    life.step(of(RunEvent::Attached));
    assert_eq!(
        life.step(of(RunEvent::RunnerDied)),
        [Action::KillStep, Action::Close { failed: true }]
    );
    let mut life = hardy();
    for run in [1, 2] {
        life.step(Event::Of(run, RunEvent::RunnerDied));
        life.step(Event::Restart);
        assert!(!life.is_final(), "{run}");
    }
    life.step(Event::Of(3, RunEvent::StepExited));
    assert_eq!(
        (life.state, life.ending.unwrap().cause()),
        (ModelState::Failed, Cause::RunnerLost)
    );
}

#[test]
fn a_stop_between_two_attempts_ends_it_at_once() {
    let mut life = hardy();
    life.step(of(RunEvent::RunnerDied));
    assert_eq!(
        life.step(Event::Stop(Cause::Stopped)),
        [Action::KillStep, Action::Close { failed: false }]
    );
    assert_eq!(life.state, ModelState::Ended);
}

#[test]
fn a_life_between_two_attempts_survives_the_agent() {
    let mut life = hardy();
    life.step(of(RunEvent::RunnerDied));
    let mut next = Life::recovered(life.kept());
    assert!(next.is_without_run());
    assert_eq!(
        next.step(Event::Restart),
        [Action::StartStep, Action::ArmLaunchDeadline]
    );
}

/// A restart of the agent must not announce again what is already on its way out.
#[test]
fn an_end_that_has_begun_survives_the_agent() {
    let mut life = hardy();
    life.step(ends(RunnerPhase::Leaving, died()));
    let mut next = Life::recovered(life.kept());
    assert_eq!(next.state, ModelState::Draining);
    next.step(ends(RunnerPhase::Leaving, died()));
    assert_eq!(
        next.ending.as_ref().unwrap().text,
        died().text,
        "the runner's own words, once it is back"
    );
    assert_eq!(
        next.step(of(RunEvent::Attached)),
        [Action::AwaitRelease],
        "who waited for the catalogs is gone"
    );
    next.step(of(RunEvent::RunnerDied));
    assert_eq!(next.state, ModelState::Failed);
}
