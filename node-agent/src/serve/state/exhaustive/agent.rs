//! The agent's task for the model, after `serve/model`: what it waits for, and how it carries out what the life decides.

use slurm_serve_proto::v1::Cause;

use super::super::laws::{Step, broken};
use super::super::{Action, Event, Kept, Life};

/// What the agent holds in memory; all of it is gone with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agent {
    /// The machine itself.
    pub life: Life,
    /// The launch deadline runs.
    pub launch_deadline: bool,
    /// The deadline of a runner that is away runs.
    pub runner_deadline: bool,
    /// Another try of srun is due.
    pub retry: bool,
    /// Another attempt is due.
    pub restart: bool,
    /// It waits for every catalog to let go.
    pub leaving: bool,
}

/// What goes out of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Out {
    /// srun is started.
    Srun,
    /// srun is killed, and what it started with it.
    Kill,
    /// The order, for this attempt.
    Order(u32),
    /// The runner is to end.
    Stop(Cause),
    /// The runner may refuse requests.
    Released,
    /// What is known of the runner that was lost is forgotten.
    Renew,
}

impl Agent {
    /// With a model that was just asked for.
    pub fn new(max_attempts: u32) -> Self {
        Self::with(Life::new(max_attempts))
    }

    /// After a restart.
    pub fn recovered(kept: Kept) -> Self {
        let life = Life::recovered(kept);
        let restart = life.is_without_run();
        Self {
            runner_deadline: !restart,
            restart,
            ..Self::with(life)
        }
    }

    /// After a restart that found nothing of it on disk.
    pub fn without() -> Self {
        let mut agent = Self::new(1);
        agent.life.step(Event::JobEnded);
        agent
    }

    fn with(life: Life) -> Self {
        Self {
            life,
            launch_deadline: false,
            runner_deadline: false,
            retry: false,
            restart: false,
            leaving: false,
        }
    }

    /// Takes one step. Says what goes out, and the first law that was broken.
    pub fn step(&mut self, event: Event) -> (Vec<Out>, Option<&'static str>) {
        let before = self.life.clone();
        let actions = self.life.step(event.clone());
        let law = broken(&Step {
            before: &before,
            event: &event,
            after: &self.life,
            actions: &actions,
        });
        let out = actions
            .into_iter()
            .filter_map(|action| self.act(&action))
            .collect();
        (out, law)
    }

    fn act(&mut self, action: &Action) -> Option<Out> {
        match action {
            Action::StartStep => return Some(Out::Srun),
            Action::RetryStep => self.retry = true,
            Action::SendOrder => return Some(Out::Order(self.life.attempt)),
            Action::SendStop(cause) => return Some(Out::Stop(*cause)),
            Action::SendReleased => return Some(Out::Released),
            Action::AwaitRelease => self.leaving = true,
            Action::ArmLaunchDeadline => self.launch_deadline = true,
            Action::ArmRunnerDeadline => self.runner_deadline = true,
            Action::KillStep => return Some(Out::Kill),
            Action::NewAttempt => {}
            Action::RestartLater => {
                *self = Self {
                    restart: true,
                    ..Self::with(self.life.clone())
                };
                return Some(Out::Renew);
            }
            Action::Close { .. } => *self = Self::with(self.life.clone()),
        }
        None
    }
}
