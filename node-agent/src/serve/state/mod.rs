//! The life of one served model as a pure function: `(life, event) -> (life, actions)`.
//!
//! ```text
//!              Start          Attached, Facts(Loading)   Facts(Ready)        Stop, Facts(Leaving)
//!  Requested ─────────▶ Launching ───────────▶ Loading ───────────▶ Ready ───────────▶ Draining ─────▶ Ended
//!                          ▲                      ▲                 ▲   │ lost, attempts left   Facts(Done)
//!                          │ Restart              │ Facts(Loading)  │   ▼
//!                          └──────────────────────┴─────────── Restarting
//!
//!  Ready ◀──▶ Unresponsive   its engine answers nothing, or its runner is frozen
//!  Ready ◀──▶ Retiring       its job's end is near
//!
//!  from any of them: Failed   lost for good (StepExited, RunnerDied, the deadlines, Facts(Leaving|Done) with a cause nobody asked for)
//!                    Ended    JobEnded
//! ```
//!
//! One task (see `model.rs`) owns a life; everything else sends it events. Final states absorb every event: a late goodbye changes
//! nothing. What comes from one srun and its runner is an [`RunEvent`] and says which *run* it is of; what is not of the present run
//! changes nothing either. An *attempt* is an engine's, and has a generation of its own: a runner may make several, the agent makes one
//! more by starting another run. `laws` has what holds of every step, and the tests that hold it to that.

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
mod words;

use serde::{Deserialize, Serialize};
use slurm_serve_proto::v1::{self, Cause, Ending, ModelState, RunnerPhase};

pub use self::words::{asked_ending, is_asked};

/// How often a step that Slurm refused for a passing reason is tried again.
pub const STEP_ATTEMPTS: u32 = 5;

/// Everything that decides what may happen next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Life {
    /// As the catalog tells it.
    pub state: ModelState,
    /// The runner has a stream to us.
    pub attached: bool,
    /// Somebody asked it to end.
    pub asked: Option<Cause>,
    /// Why it ended, or is about to.
    pub ending: Option<Ending>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// Why the attempt before this one failed.
    pub last_failure: Option<Ending>,
    /// The present srun and runner, named by the attempt that they began with.
    pub run: u32,
    /// How often srun was started for the present run.
    pub steps: u32,
    /// Was this attempt ever ready?
    pub was_ready: bool,
    /// Was any? What never came up is not tried again.
    pub ever_ready: bool,
    /// The runner says that the engine answers nothing.
    silent: bool,
    /// Nothing is heard of the runner.
    frozen: bool,
    /// The job's end is near.
    late: bool,
}

/// What of a life survives the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kept {
    /// See [`Life::attempt`].
    pub attempt: u32,
    /// See [`Life::max_attempts`].
    pub max_attempts: u32,
    /// See [`Life::run`].
    pub run: u32,
    /// Is another step still to be started?
    pub restarting: bool,
    /// See [`Life::was_ready`].
    pub was_ready: bool,
    /// See [`Life::ever_ready`].
    pub ever_ready: bool,
    /// See [`Life::asked`]; 0: nobody did.
    pub asked: i32,
    /// The cause of the end that its runner has begun; 0: it has not.
    #[serde(default)]
    pub ending: i32,
}

/// What happens to a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Launch it.
    Start,
    /// The pause before another attempt is over.
    Restart,
    /// Something about one run of it.
    Of(u32, RunEvent),
    /// Somebody asks it to end.
    Stop(Cause),
    /// Every catalog has let go, or the settle time is over.
    Released,
    /// The job's end is near, or is not any more.
    EndNear(bool),
    /// The job's epilog ran.
    JobEnded,
}

/// What happens to one srun and the runner that it started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RunEvent {
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
    Facts(Box<Facts>),
    /// Nothing was heard of an attached runner for too long.
    Quiet,
    /// It is heard again.
    Heard,
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
}

/// What a runner says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Facts {
    /// Where it is.
    pub phase: RunnerPhase,
    /// Which attempt; 0: a runner that does not count.
    pub attempt: u32,
    /// Why it ends.
    pub ending: Option<Ending>,
    /// Why the attempt before failed.
    pub last_failure: Option<Ending>,
    /// Its engine lives, and answers nothing.
    pub silent: bool,
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    /// The generation is another now: the old one is gone.
    NewAttempt,
    /// Say `Restart` after the pause before this attempt.
    RestartLater,
    /// It is over: let go of port, key and files; the job is cancelled if it asked for that and `failed`.
    Close {
        /// Nobody had asked for the end.
        failed: bool,
    },
}

impl Facts {
    /// As they came over the wire.
    pub fn of(said: &v1::RunnerFacts) -> Self {
        Self {
            phase: said.phase(),
            attempt: said.attempt,
            ending: said.ending.clone(),
            last_failure: said.last_failure.clone(),
            silent: said.silent_since_ms != 0,
        }
    }
}

impl Life {
    /// A model that was just asked for, and may be tried `max_attempts` times.
    pub fn new(max_attempts: u32) -> Self {
        Self {
            state: ModelState::Requested,
            attached: false,
            asked: None,
            ending: None,
            attempt: 1,
            max_attempts: max_attempts.max(1),
            last_failure: None,
            run: 1,
            steps: 0,
            was_ready: false,
            ever_ready: false,
            silent: false,
            frozen: false,
            late: false,
        }
    }

    /// A model of a former life of the agent, whose runner is expected back, or whose next step is still to be started.
    pub fn recovered(kept: Kept) -> Self {
        let (asked, ending) = (known(kept.asked), known(kept.ending));
        Self {
            state: match kept {
                Kept { restarting: true, .. } => ModelState::Restarting,
                // Its runner is told, or told again, when it is back.
                _ if asked.is_some() || ending.is_some() => ModelState::Draining,
                Kept { was_ready: true, .. } => ModelState::Ready,
                _ => ModelState::Launching,
            },
            asked,
            ending: ending.map(|cause| match is_asked(cause) {
                true => asked_ending(cause),
                // Until its runner says it once more.
                false => failure(
                    cause,
                    "it failed while the agent was away",
                    "the server's log says why",
                ),
            }),
            attempt: kept.attempt,
            run: kept.run,
            steps: u32::from(!kept.restarting),
            was_ready: kept.was_ready,
            ever_ready: kept.ever_ready,
            ..Self::new(kept.max_attempts)
        }
    }

    /// What must survive the agent.
    pub fn kept(&self) -> Kept {
        Kept {
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            run: self.run,
            restarting: self.is_without_run(),
            was_ready: self.was_ready,
            ever_ready: self.ever_ready,
            asked: self.asked.map_or(0, i32::from),
            ending: self.ending.as_ref().map_or(0, |ending| ending.cause),
        }
    }

    /// Is it over?
    pub fn is_final(&self) -> bool {
        matches!(self.state, ModelState::Ended | ModelState::Failed)
    }

    /// Is it to be started again by another step?
    pub fn is_without_run(&self) -> bool {
        self.state == ModelState::Restarting && self.steps == 0
    }

    /// What `event` does. Never panics, whatever comes in whatever order.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        if self.is_final() {
            return Vec::new();
        }
        let actions = match event {
            Event::Start if self.state == ModelState::Requested => self.launch(),
            Event::Restart if self.is_without_run() => self.launch(),
            Event::Start | Event::Restart => Vec::new(),
            Event::Of(run, event) if run == self.run && self.steps > 0 => self.of_run(event),
            Event::Of(..) => Vec::new(),
            Event::Stop(cause) => self.stop(cause),
            Event::Released if self.state == ModelState::Draining => vec![Action::SendReleased],
            Event::Released => Vec::new(),
            Event::EndNear(near) => {
                self.late = near;
                Vec::new()
            }
            Event::JobEnded => {
                let last = self.failing();
                self.finish(last.unwrap_or_else(|| asked_ending(Cause::JobEnded)))
            }
        };
        self.show();
        actions
    }

    fn of_run(&mut self, event: RunEvent) -> Vec<Action> {
        match event {
            RunEvent::StepRefused { text, passing } => self.step_refused(&text, passing),
            RunEvent::Attached => self.attached(),
            RunEvent::Facts(facts) => self.facts(*facts),
            RunEvent::Quiet => {
                self.frozen = true;
                Vec::new()
            }
            RunEvent::Heard => {
                self.frozen = false;
                Vec::new()
            }
            RunEvent::Detached => {
                self.attached = false;
                vec![Action::ArmRunnerDeadline]
            }
            RunEvent::RunnerDied | RunEvent::StepExited => self.lost("its runner was killed"),
            RunEvent::LaunchDeadline if !self.attached && self.state == ModelState::Launching => self.fail(
                Cause::StepRefused,
                "Slurm was asked for the server's step, and nothing was heard of its runner",
                "was slurmctld away? The agent's log on this node has what srun said; agent.launch_timeout is how long it is waited for",
            ),
            RunEvent::RunnerDeadline if !self.attached => self.lost("its runner did not come back"),
            RunEvent::LaunchDeadline | RunEvent::RunnerDeadline => Vec::new(),
        }
    }

    /// Of the three states of a model that is loaded, the one that is true now.
    fn show(&mut self) {
        use ModelState::{Ready, Retiring, Unresponsive};
        if matches!(self.state, Ready | Unresponsive | Retiring) {
            self.state = match (self.silent || self.frozen, self.late) {
                (true, _) => Unresponsive,
                (false, true) => Retiring,
                (false, false) => Ready,
            };
        }
    }

    fn launch(&mut self) -> Vec<Action> {
        self.state = ModelState::Launching;
        self.steps = 1;
        vec![Action::StartStep, Action::ArmLaunchDeadline]
    }

    fn step_refused(&mut self, text: &str, passing: bool) -> Vec<Action> {
        if self.attached {
            return Vec::new();
        }
        if self.asked.is_none() && passing && self.steps < STEP_ATTEMPTS {
            self.steps += 1;
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
        self.frozen = false;
        match (self.state, self.asked) {
            // Asked to end while nobody was there to be told.
            (ModelState::Draining, Some(cause)) => vec![Action::SendStop(cause), Action::AwaitRelease],
            // It began to end by itself; whoever waited for the catalogs then may have died since.
            (ModelState::Draining, None) => vec![Action::AwaitRelease],
            (ModelState::Launching, _) => vec![Action::SendOrder],
            _ => Vec::new(),
        }
    }

    fn facts(&mut self, facts: Facts) -> Vec<Action> {
        self.frozen = false;
        let mut actions = Vec::new();
        // Of an attempt that we know to be over, or one that begins while it is asked to end: its end is all that counts then.
        if facts.attempt > self.attempt && self.state != ModelState::Draining {
            if facts.attempt > self.max_attempts {
                let text = "its runner made more attempts than the recipe allows";
                return self.fail(Cause::Internal, text, "");
            }
            self.begin(facts.attempt, facts.last_failure);
            actions.push(Action::NewAttempt);
        } else if facts.attempt != 0 && facts.attempt < self.attempt {
            return actions;
        }
        self.silent = facts.silent;
        match facts.phase {
            RunnerPhase::Unspecified | RunnerPhase::Starting | RunnerPhase::Restarting => {}
            RunnerPhase::Loading => {
                if matches!(self.state, ModelState::Launching | ModelState::Restarting) {
                    self.state = ModelState::Loading;
                }
            }
            RunnerPhase::Ready => {
                use ModelState::{Launching, Loading, Restarting};
                if matches!(self.state, Launching | Loading | Restarting) {
                    self.state = ModelState::Ready;
                    (self.was_ready, self.ever_ready) = (true, true);
                }
            }
            RunnerPhase::Leaving | RunnerPhase::Draining => {
                self.ending = facts.ending.or(self.ending.take());
                if self.state != ModelState::Draining {
                    self.state = ModelState::Draining;
                    actions.push(Action::AwaitRelease);
                }
            }
            RunnerPhase::Done => {
                let last = facts
                    .ending
                    .or_else(|| self.ending.clone())
                    .unwrap_or_else(|| Ending {
                        cause: Cause::Internal.into(),
                        text: "the runner ended without saying why".into(),
                        ..Ending::default()
                    });
                actions.extend(self.finish(last));
            }
        }
        actions
    }

    /// Another attempt, under another generation.
    fn begin(&mut self, attempt: u32, last_failure: Option<Ending>) {
        self.attempt = attempt;
        self.last_failure = last_failure;
        self.state = ModelState::Restarting;
        self.was_ready = false;
        self.silent = false;
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
            // There is nobody who could be asked.
            (ModelState::Requested, _) | (ModelState::Launching, false) => self.finish(asked_ending(cause)),
            (ModelState::Restarting, _) if self.is_without_run() => self.finish(asked_ending(cause)),
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
        let failure = failure(
            Cause::RunnerLost,
            what,
            "the step was killed from outside, or by the job's memory limit: see sacct and the server's log",
        );
        if !self.ever_ready || self.attempt >= self.max_attempts || self.state == ModelState::Draining {
            return self.finish(failure);
        }
        self.begin(self.attempt + 1, Some(failure));
        (self.run, self.steps, self.frozen) = (self.attempt, 0, false);
        vec![Action::KillStep, Action::NewAttempt, Action::RestartLater]
    }

    fn fail(&mut self, cause: Cause, text: &str, hint: &str) -> Vec<Action> {
        self.finish(failure(cause, text, hint))
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

/// As it was kept.
fn known(cause: i32) -> Option<Cause> {
    Cause::try_from(cause)
        .ok()
        .filter(|cause| *cause != Cause::Unspecified)
}

fn failure(cause: Cause, text: &str, hint: &str) -> Ending {
    Ending {
        cause: cause.into(),
        text: text.into(),
        hint: hint.into(),
        ..Ending::default()
    }
}
