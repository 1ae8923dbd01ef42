//! The life of one served model as a pure function: `(life, event) -> (life, actions)`.
//!
//! ```text
//!              Start          Attached, Facts(Loading)   Facts(Ready)        Stop, JobEnding, Facts(Leaving)
//!  Requested ─────────▶ Launching ───────────▶ Loading ───────────▶ Ready ───────────▶ Draining ─────▶ Ended
//!      │                   │                      │                   │                   │   Facts(Done)
//!      └───────────────────┴──────────────────────┴───────────────────┴───────────────────┴──────────▶ Failed
//!         StepExited, LaunchDeadline, RunnerDeadline, RunnerDied, Facts(Leaving|Done) with a cause nobody asked for
//! ```
//!
//! One task (see `model.rs`) owns a life; everything else sends it events. Final states absorb every event: a late goodbye changes
//! nothing.

use slurm_serve_proto::v1::{Cause, Ending, ModelState, RunnerPhase};

/// How often a step that Slurm refused for a passing reason is tried again.
pub const STEP_ATTEMPTS: u32 = 5;

/// Everything that decides what may happen next.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// As the catalog tells it.
    pub state: ModelState,
    /// The runner has a stream to us.
    pub attached: bool,
    /// Was it ever announced as ready?
    pub was_ready: bool,
    /// Somebody asked it to end.
    pub asked: Option<Cause>,
    /// Why it ended, or is about to.
    pub ending: Option<Ending>,
    /// Steps started so far.
    pub attempts: u32,
}

/// What happens to a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Launch it.
    Start,
    /// srun could not be started, or ended before the runner came; `passing` if trying again makes sense.
    StepRefused {
        /// What srun said.
        text: String,
        /// Slurm was not ready for it yet.
        passing: bool,
    },
    /// The runner came, or came back.
    Attached,
    /// What the runner says of itself.
    Facts(RunnerPhase, Option<Ending>),
    /// The runner's stream broke; its process may live.
    Detached,
    /// The runner's process, or its step, is gone.
    RunnerDied,
    /// srun ended after the runner had come.
    StepExited,
    /// No runner came in time.
    LaunchDeadline,
    /// The runner did not come back in time.
    RunnerDeadline,
    /// Somebody asks it to end.
    Stop(Cause),
    /// Every catalog has let go, or the settle time is over.
    Released,
    /// The job's epilog ran.
    JobEnded,
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Start srun.
    StartStep,
    /// Start srun once more, after a pause that grows with the attempts.
    RetryStep,
    /// Give the runner its order.
    SendOrder,
    /// Ask the runner to end.
    SendStop(Cause),
    /// Tell the runner that it may refuse requests.
    SendReleased,
    /// Say `Released` once every catalog has let go, or after the settle time.
    AwaitRelease,
    /// Wait a bounded time for the runner to come.
    ArmLaunchDeadline,
    /// Wait a bounded time for the runner to come back.
    ArmRunnerDeadline,
    /// Kill srun and all it has started outside the job.
    KillStep,
    /// It is over: let go of port, key and files; the job is cancelled if it asked for that and `failed`.
    Close {
        /// Nobody had asked for the end.
        failed: bool,
    },
}

impl Life {
    /// A model that was just asked for.
    pub fn new() -> Self {
        Self {
            state: ModelState::Requested,
            attached: false,
            was_ready: false,
            asked: None,
            ending: None,
            attempts: 0,
        }
    }

    /// A model of a former life of the agent, whose runner is expected back.
    pub fn recovered(was_ready: bool) -> Self {
        let state = if was_ready {
            ModelState::Ready
        } else {
            ModelState::Launching
        };
        Self {
            state,
            attached: false,
            was_ready,
            asked: None,
            ending: None,
            attempts: 1,
        }
    }

    /// Is it over?
    pub fn is_final(&self) -> bool {
        matches!(self.state, ModelState::Ended | ModelState::Failed)
    }

    /// What `event` does. Never panics, whatever comes in whatever order.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        if self.is_final() {
            return Vec::new();
        }
        match event {
            Event::Start => self.start(),
            Event::StepRefused { text, passing } => self.step_refused(text, passing),
            Event::Attached => self.attached(),
            Event::Facts(phase, ending) => self.facts(phase, ending),
            Event::Detached => {
                self.attached = false;
                vec![Action::ArmRunnerDeadline]
            }
            Event::RunnerDied | Event::StepExited => self.lost("its runner was killed"),
            Event::LaunchDeadline if !self.attached && self.state == ModelState::Launching => self.fail(
                Cause::StepRefused,
                "the step started, but nothing was heard of its runner",
                "see agent.launch_timeout, and the agent's log on this node",
            ),
            Event::RunnerDeadline if !self.attached => self.lost("its runner did not come back"),
            Event::LaunchDeadline | Event::RunnerDeadline => Vec::new(),
            Event::Stop(cause) => self.stop(cause),
            Event::Released if self.state == ModelState::Draining => vec![Action::SendReleased],
            Event::Released => Vec::new(),
            Event::JobEnded => {
                let ended = Ending {
                    cause: Cause::JobEnded.into(),
                    text: "the job ended".into(),
                    ..Ending::default()
                };
                let last = self.failing().unwrap_or(ended);
                self.finish(last)
            }
        }
    }

    fn start(&mut self) -> Vec<Action> {
        if self.state != ModelState::Requested {
            return Vec::new();
        }
        self.state = ModelState::Launching;
        self.attempts = 1;
        vec![Action::StartStep, Action::ArmLaunchDeadline]
    }

    fn step_refused(&mut self, text: String, passing: bool) -> Vec<Action> {
        if self.attached {
            return Vec::new();
        }
        if self.asked.is_none() && passing && self.attempts < STEP_ATTEMPTS {
            self.attempts += 1;
            return vec![Action::RetryStep];
        }
        self.fail(
            Cause::StepRefused,
            &format!("Slurm did not start the server's step: {text}"),
            "",
        )
    }

    fn attached(&mut self) -> Vec<Action> {
        self.attached = true;
        match (self.state, self.asked) {
            // Asked to end while nobody was there to be told.
            (ModelState::Draining, Some(cause)) => vec![Action::SendStop(cause), Action::AwaitRelease],
            (ModelState::Launching, _) => vec![Action::SendOrder],
            _ => Vec::new(),
        }
    }

    fn facts(&mut self, phase: RunnerPhase, ending: Option<Ending>) -> Vec<Action> {
        match phase {
            RunnerPhase::Unspecified | RunnerPhase::Starting => Vec::new(),
            RunnerPhase::Loading => {
                if self.state == ModelState::Launching {
                    self.state = ModelState::Loading;
                }
                Vec::new()
            }
            RunnerPhase::Ready => {
                if matches!(self.state, ModelState::Launching | ModelState::Loading) {
                    self.state = ModelState::Ready;
                    self.was_ready = true;
                }
                Vec::new()
            }
            RunnerPhase::Leaving | RunnerPhase::Draining => {
                if self.ending.is_none() {
                    self.ending = ending;
                }
                if self.state == ModelState::Draining {
                    return Vec::new();
                }
                self.state = ModelState::Draining;
                vec![Action::AwaitRelease]
            }
            RunnerPhase::Done => {
                let last = ending.or_else(|| self.ending.clone()).unwrap_or_else(|| Ending {
                    cause: Cause::Internal.into(),
                    text: "the runner ended without saying why".into(),
                    ..Ending::default()
                });
                self.finish(last)
            }
        }
    }

    /// Why it is failing, while it still leaves the catalog.
    fn failing(&self) -> Option<Ending> {
        self.ending
            .clone()
            .filter(|ending| self.asked.is_none() && !is_asked(ending.cause()))
    }

    fn stop(&mut self, cause: Cause) -> Vec<Action> {
        // A failure often ends the job, and the job's end must not make it look asked for.
        if self.asked.is_some() || self.failing().is_some() {
            return Vec::new();
        }
        self.asked = Some(cause);
        match (self.state, self.attached) {
            (ModelState::Requested, _) => self.finish(asked_ending(cause)),
            (ModelState::Launching, false) => self.finish(asked_ending(cause)),
            (ModelState::Draining, _) => Vec::new(),
            (_, true) => {
                self.state = ModelState::Draining;
                vec![Action::SendStop(cause), Action::AwaitRelease]
            }
            // The runner is away; it is told when it is back, and lost if it does not come.
            (_, false) => {
                self.state = ModelState::Draining;
                vec![Action::ArmRunnerDeadline]
            }
        }
    }

    fn lost(&mut self, what: &str) -> Vec<Action> {
        self.attached = false;
        if let Some(cause) = self.asked {
            return self.finish(self.ending.clone().unwrap_or_else(|| asked_ending(cause)));
        }
        if let Some(ending) = self.ending.clone() {
            return self.finish(ending);
        }
        self.fail(
            Cause::RunnerLost,
            what,
            "the step was killed from outside, or by the job's memory limit: see sacct and the server's log",
        )
    }

    fn fail(&mut self, cause: Cause, text: &str, hint: &str) -> Vec<Action> {
        self.finish(Ending {
            cause: cause.into(),
            text: text.into(),
            hint: hint.into(),
            ..Ending::default()
        })
    }

    fn finish(&mut self, ending: Ending) -> Vec<Action> {
        let failed = self.asked.is_none() && !is_asked(ending.cause());
        self.state = if failed {
            ModelState::Failed
        } else {
            ModelState::Ended
        };
        self.ending = Some(match self.asked {
            // What was asked for is the cause, whatever came of the way there.
            Some(cause) if is_asked(ending.cause()) => Ending {
                cause: cause.into(),
                text: asked_ending(cause).text,
                ..ending
            },
            _ => ending,
        });
        self.attached = false;
        vec![Action::KillStep, Action::Close { failed }]
    }
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

/// Ends that somebody asked for, in words.
pub fn asked_ending(cause: Cause) -> Ending {
    let text = match cause {
        Cause::Cancelled => "the job was cancelled",
        Cause::TimeLimit => "the job reached its time limit",
        Cause::Preempted => "the job was preempted",
        Cause::Requeued => "the job was requeued",
        Cause::Stopped => "it was stopped with sserve stop",
        _ => "the job ended",
    };
    Ending {
        cause: cause.into(),
        text: text.into(),
        ..Ending::default()
    }
}

/// Did somebody ask for an end with this cause? All others are failures.
pub fn is_asked(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::JobEnded
            | Cause::Cancelled
            | Cause::TimeLimit
            | Cause::Preempted
            | Cause::Requeued
            | Cause::Stopped
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ready() -> Life {
        let mut life = Life::new();
        life.step(Event::Start);
        life.step(Event::Attached);
        life.step(Event::Facts(RunnerPhase::Loading, None));
        life.step(Event::Facts(RunnerPhase::Ready, None));
        assert_eq!(life.state, ModelState::Ready);
        life
    }

    fn died() -> Ending {
        Ending {
            cause: Cause::EngineDied.into(),
            text: "exit 0".into(),
            ..Ending::default()
        }
    }

    #[test]
    fn the_straight_way() {
        let mut life = Life::new();
        assert_eq!(
            life.step(Event::Start),
            [Action::StartStep, Action::ArmLaunchDeadline]
        );
        assert_eq!(life.step(Event::Attached), [Action::SendOrder]);
        assert_eq!(life.step(Event::Facts(RunnerPhase::Loading, None)), []);
        assert_eq!(life.state, ModelState::Loading);
        life.step(Event::Facts(RunnerPhase::Ready, None));
        assert_eq!(
            life.step(Event::Stop(Cause::Stopped)),
            [Action::SendStop(Cause::Stopped), Action::AwaitRelease]
        );
        assert_eq!(life.state, ModelState::Draining);
        assert_eq!(life.step(Event::Released), [Action::SendReleased]);
        let done = life.step(Event::Facts(
            RunnerPhase::Done,
            Some(asked_ending(Cause::JobEnded)),
        ));
        assert_eq!(done, [Action::KillStep, Action::Close { failed: false }]);
        assert_eq!(life.ending.unwrap().cause(), Cause::Stopped);
    }

    #[test]
    fn a_failure_that_ends_its_job_stays_a_failure() {
        for last in [Event::Facts(RunnerPhase::Done, None), Event::JobEnded] {
            let mut life = ready();
            life.step(Event::Facts(RunnerPhase::Leaving, Some(died())));
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
            life.step(Event::Facts(RunnerPhase::Leaving, Some(died()))),
            [Action::AwaitRelease]
        );
        assert_eq!(
            life.step(Event::Facts(RunnerPhase::Done, None)),
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
        assert_eq!(life.step(Event::Detached), [Action::ArmRunnerDeadline]);
        assert_eq!(life.state, ModelState::Ready);
        life.step(Event::Attached);
        assert_eq!(life.step(Event::RunnerDeadline), []);
        assert_eq!(life.state, ModelState::Ready);
        life.step(Event::Detached);
        life.step(Event::RunnerDeadline);
        assert_eq!(life.state, ModelState::Failed);
    }

    #[test]
    fn a_step_is_tried_again_a_bounded_number_of_times() {
        let mut life = Life::new();
        life.step(Event::Start);
        let refused = || Event::StepRefused {
            text: "pending".into(),
            passing: true,
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
        life.step(Event::Detached);
        assert_eq!(
            life.step(Event::Stop(Cause::JobEnded)),
            [Action::ArmRunnerDeadline]
        );
        assert_eq!(
            life.step(Event::Attached),
            [Action::SendStop(Cause::JobEnded), Action::AwaitRelease]
        );
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let phases = prop_oneof![
            Just(RunnerPhase::Unspecified),
            Just(RunnerPhase::Starting),
            Just(RunnerPhase::Loading),
            Just(RunnerPhase::Ready),
            Just(RunnerPhase::Leaving),
            Just(RunnerPhase::Draining),
            Just(RunnerPhase::Done)
        ];
        let endings = prop_oneof![
            Just(None),
            Just(Some(died())),
            Just(Some(asked_ending(Cause::JobEnded)))
        ];
        prop_oneof![
            Just(Event::Start),
            any::<bool>().prop_map(|passing| Event::StepRefused {
                text: "x".into(),
                passing
            }),
            Just(Event::Attached),
            (phases, endings).prop_map(|(phase, ending)| Event::Facts(phase, ending)),
            Just(Event::Detached),
            Just(Event::RunnerDied),
            Just(Event::StepExited),
            Just(Event::LaunchDeadline),
            Just(Event::RunnerDeadline),
            Just(Event::Stop(Cause::Stopped)),
            Just(Event::Released),
            Just(Event::JobEnded),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_life_only_goes_forward_and_closes_once(events in prop::collection::vec(any_event(), 0..60)) {
            let mut life = Life::new();
            let (mut rank, mut closed, mut starts) = (0, 0, 0);
            for event in events {
                let actions = life.step(event);
                let now = life.state as i32;
                prop_assert!(now >= rank, "went back from {rank} to {:?}", life.state);
                rank = now;
                closed += actions.iter().filter(|a| matches!(a, Action::Close { .. })).count();
                starts += actions.iter().filter(|a| matches!(a, Action::StartStep)).count();
                prop_assert_eq!(closed, usize::from(life.is_final()));
                prop_assert!(starts <= 1);
                prop_assert_eq!(life.is_final(), life.ending.is_some() && life.is_final());
                if life.state == ModelState::Failed {
                    prop_assert!(life.asked.is_none(), "an end that was asked for is no failure");
                }
            }
            life.step(Event::JobEnded);
            prop_assert!(life.is_final(), "nothing outlives its job");
        }
    }
}
