//! Anything in any order: the laws hold of every step, and every life ends.

use proptest::prelude::*;

use super::laws::{Step, broken};
use super::*;

const PHASES: [RunnerPhase; 8] = [
    RunnerPhase::Unspecified,
    RunnerPhase::Starting,
    RunnerPhase::Loading,
    RunnerPhase::Ready,
    RunnerPhase::Leaving,
    RunnerPhase::Draining,
    RunnerPhase::Done,
    RunnerPhase::Restarting,
];

fn endings() -> [Option<Ending>; 3] {
    let died = failure(Cause::EngineDied, "exit 0", "");
    [None, Some(died), Some(asked_ending(Cause::JobEnded))]
}

/// Every event there is, up to what the life does not look at: about runs and attempts up to `most`.
pub fn all_events(most: u32) -> Vec<Event> {
    let mut of_a_run = vec![
        RunEvent::Attached,
        RunEvent::Quiet,
        RunEvent::Heard,
        RunEvent::Detached,
        RunEvent::RunnerDied,
        RunEvent::StepExited,
        RunEvent::LaunchDeadline,
        RunEvent::RunnerDeadline,
    ];
    of_a_run.extend([true, false].map(|passing| RunEvent::StepRefused {
        text: "x".into(),
        passing,
    }));
    for phase in PHASES {
        for ending in endings() {
            for attempt in 0..=most {
                of_a_run.extend([true, false].map(|silent| {
                    RunEvent::Facts(Box::new(Facts {
                        phase,
                        attempt,
                        ending: ending.clone(),
                        last_failure: None,
                        silent,
                    }))
                }));
            }
        }
    }
    let mut all = vec![
        Event::Start,
        Event::Restart,
        Event::Stop(Cause::Stopped),
        Event::Stop(Cause::JobEnded),
        Event::Released,
        Event::EndNear(true),
        Event::EndNear(false),
        Event::JobEnded,
    ];
    for run in 1..=most {
        all.extend(of_a_run.iter().map(|event| Event::Of(run, event.clone())));
    }
    all
}

/// Takes one step and holds it to the laws.
pub fn lawful(life: &mut Life, event: Event) -> Result<Vec<Action>, String> {
    let before = life.clone();
    let actions = life.step(event.clone());
    let step = Step {
        before: &before,
        event: &event,
        after: life,
        actions: &actions,
    };
    match broken(&step) {
        Some(law) => Err(format!("{law}: {before:?} + {event:?} = {life:?}, {actions:?}")),
        None => Ok(actions),
    }
}

proptest! {
    #[test]
    fn whatever_comes_the_laws_hold_and_life_ends(
        max_attempts in 1u32..4,
        events in prop::collection::vec(prop::sample::select(all_events(4)), 0..80),
    ) {
        let mut life = Life::new(max_attempts);
        let mut closed = 0;
        for event in std::iter::once(Event::Start).chain(events).chain([Event::JobEnded]) {
            let actions = lawful(&mut life, event).map_err(TestCaseError::fail)?;
            closed += actions.iter().filter(|a| matches!(a, Action::Close { .. })).count();
        }
        prop_assert!(life.is_final() && closed == 1);
    }

    #[test]
    fn a_life_that_is_taken_up_again_is_as_lawful(
        first in prop::collection::vec(prop::sample::select(all_events(3)), 0..20),
        second in prop::collection::vec(prop::sample::select(all_events(3)), 0..40),
    ) {
        let mut life = Life::new(3);
        for event in std::iter::once(Event::Start).chain(first) {
            lawful(&mut life, event).map_err(TestCaseError::fail)?;
        }
        prop_assume!(!life.is_final());
        let mut next = Life::recovered(life.kept());
        prop_assert_eq!(next.kept(), life.kept(), "nothing is lost by being kept twice");
        for event in second.into_iter().chain([Event::JobEnded]) {
            lawful(&mut next, event).map_err(TestCaseError::fail)?;
        }
        prop_assert!(next.is_final());
    }
}
