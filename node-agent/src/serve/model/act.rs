//! Carrying out what a model's life decides.

use std::time::Duration;

use slurm_serve_proto::v1::{self, Cause, RunnerPhase};
use slurm_serve_recipe::Recipe;
use tokio::time::Instant;

use super::{Message, Task};
use crate::serve::process::{Known, end_group};
use crate::serve::state::{Action, Event, RunEvent};
use crate::serve::{srun, sweep, users};
use crate::slurm::SlurmJob;

/// How long a step that Slurm was not ready for waits before it is tried again, times the number of tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long a runner that was given up, and whose step was killed, may take to die.
const LOST_RUNNER: Duration = Duration::from_secs(30);

impl Task {
    pub(super) async fn act(&mut self, action: Action) {
        let world = self.world.clone();
        let config = &world.config;
        match action {
            Action::StartStep => self.start_step().await,
            Action::RetryStep => self.retry_at = Some(Instant::now() + RETRY_PAUSE * self.life.steps),
            Action::ArmLaunchDeadline => self.launch_deadline = Some(Instant::now() + config.launch_timeout),
            Action::ArmRunnerDeadline => self.runner_deadline = Some(Instant::now() + config.runner_timeout),
            Action::SendOrder => match self.secrets.order() {
                Ok(order) => self.say(v1::agent_message::Message::Order(order)).await,
                Err(e) => {
                    tracing::error!(
                        generation = self.launch.generation,
                        "the launch order cannot be read: {e}"
                    );
                    self.say(stop(Cause::Internal)).await;
                }
            },
            Action::SendStop(cause) => self.say(stop(cause)).await,
            Action::SendReleased => {
                self.say(v1::agent_message::Message::Released(v1::Released {}))
                    .await
            }
            Action::AwaitRelease => {
                // Published as draining a moment ago; that revision is what the watchers must have seen.
                let revision = self.publish();
                self.leaving = Some((revision, Instant::now() + config.settle_timeout));
            }
            Action::KillStep => self.kill_step(),
            Action::NewAttempt => self.new_attempt(),
            Action::RestartLater => self.restart_later(),
            Action::Close { failed } => self.close(failed),
        }
    }

    pub(super) async fn start_step(&mut self) {
        let (uid, generation) = (self.launch.uid, self.run_generation());
        let user = users::by_uid(uid).await;
        let started = match user {
            Err(why) => Err(why),
            Ok(user) => srun::start(&srun::StepStart {
                srun: &self.world.slurm.program("srun"),
                job_id: self.launch.job_id,
                component: self.launch.component,
                node: &self.world.node,
                user: &user,
                program: &self.world.program,
                socket: &self.world.config.socket,
                generation: &generation,
                nonce: self.secrets.nonce.as_deref().unwrap_or_default(),
                confine: &self.world.confine,
            })
            .map_err(|e| e.to_string()),
        };
        match started {
            Ok(started) => {
                self.leave_confined();
                let known = started.known;
                self.client = Some(started.child);
                self.words = Some(started.words);
                self.launch.client = Some((known.pid, known.start));
                self.launch.confined = started.confined;
                self.keep();
            }
            // Boxed: `event` leads here again, and a future cannot hold itself.
            Err(text) => {
                let refused = RunEvent::StepRefused { text, passing: false };
                Box::pin(self.run_event(refused)).await
            }
        }
    }

    pub(super) async fn client_exited(&mut self) {
        self.client = None;
        self.leave_confined();
        if self.life.attached {
            // What the runner said last may still be on its way; its stream ends when it does.
            if !self.runner_is_alive() && self.outbound.is_none() {
                self.run_event(RunEvent::StepExited).await;
            }
            return;
        }
        if self.launch.runner.is_some() {
            self.run_event(RunEvent::StepExited).await;
            return;
        }
        let text = self.words.take().map(|words| words.last()).unwrap_or_default();
        let passing = srun::is_passing(&text);
        self.run_event(RunEvent::StepRefused { text, passing }).await;
    }

    /// The engine was lost, and maybe its runner; the rest of what is ours is for the next attempt.
    fn new_attempt(&mut self) {
        let failure = self.life.last_failure.clone().unwrap_or_default();
        self.launch.last_failure = Some((&failure).into());
        self.keep();
        tracing::warn!(
            generation = self.generation(),
            job = self.launch.job_id,
            name = self.launch.public_name,
            cause = failure.cause().as_str_name(),
            "attempt {} of {}; the one before failed: {}",
            self.life.attempt,
            self.life.max_attempts,
            failure.text
        );
    }

    /// Lets go of the run that was lost, and starts another once nothing is left of it and the pause is over.
    pub(super) fn restart_later(&mut self) {
        let lost = self.launch.runner.take().map(|(pid, start)| Known { pid, start });
        self.leave_confined();
        self.launch.client = None;
        self.outbound = None;
        self.connection += 1;
        (self.client, self.leaving, self.retry_at) = (None, None, None);
        (self.launch_deadline, self.runner_deadline) = (None, None);
        self.facts = v1::RunnerFacts {
            log_path: std::mem::take(&mut self.facts.log_path),
            ..v1::RunnerFacts::default()
        };
        self.answer_on_port("it is being started again");
        let renewed = self.secrets.renew(self.life.run);
        if let Err(e) = renewed
            .map_err(|e| e.to_string())
            .and_then(|()| self.keep_secrets())
        {
            tracing::error!(generation = self.generation(), "{e}");
        }
        self.keep();
        let pause = self.pause_before(self.life.attempt);
        let sweep = self.sweeper();
        let (world, job_id, me) = (self.world.clone(), self.launch.job_id, self.me.clone());
        tokio::spawn(async move {
            let until = Instant::now() + pause;
            let gone = async {
                while lost.is_some_and(Known::is_alive) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            if tokio::time::timeout(LOST_RUNNER, gone).await.is_err() {
                tracing::warn!("a runner that was given up does not die; another is started all the same");
            }
            let _ = tokio::task::spawn_blocking(sweep).await;
            tokio::time::sleep_until(until).await;
            let event = match world.slurm.job(job_id).await {
                // Its end has not been told to us; the agent was away.
                Ok(job) if !job.as_ref().is_some_and(SlurmJob::is_running) => Event::JobEnded,
                Ok(_) | Err(_) => Event::Restart,
            };
            if let Some(me) = me.upgrade() {
                let _ = me.send(Message::Event(event)).await;
            }
        });
    }

    /// srun passes a TERM on to the step; what does not end by that is killed.
    pub(super) fn kill_step(&mut self) {
        let known = self.launch.client.map(|(pid, start)| Known { pid, start });
        end_group(self.client.take(), known, self.world.config.runner_timeout);
    }

    /// Whatever the srun client's owner made of it goes with it. It has the time that it has to end by itself.
    fn leave_confined(&mut self) {
        if let Some(held) = self.launch.confined.take() {
            let client = self.launch.client.map(|(pid, start)| Known { pid, start });
            tokio::spawn(held.end(client, self.world.config.runner_timeout * 2));
        }
    }

    pub(super) fn close(&mut self, failed: bool) {
        self.leave_confined();
        self.outbound = None;
        self.leave_port();
        self.view.send_modify(|view| {
            view.released = true;
            view.recovering = false;
        });
        self.log.close();
        if self.facts.phase() != RunnerPhase::Done {
            self.sweep();
        }
        if failed && self.launch.cancel_job_on_failure {
            let (world, job_id) = (self.world.clone(), self.launch.job_id);
            tokio::spawn(async move {
                if let Err(e) = world.slurm.cancel(job_id).await {
                    tracing::error!("job {job_id} asked to be cancelled with its server, but: {e}");
                }
            });
        }
    }

    fn pause_before(&self, attempt: u32) -> Duration {
        // The order was made from a checked recipe.
        let order = self.secrets.order().unwrap_or_default();
        Recipe::parse_one(&order.recipe).map_or(Duration::ZERO, |recipe| recipe.pause_before(attempt))
    }

    /// A runner that was killed could not remove its folder.
    pub(super) fn sweep(&self) {
        tokio::task::spawn_blocking(self.sweeper());
    }

    fn sweeper(&self) -> impl FnOnce() + Send + 'static {
        let (scratch, job_id, uid) = (
            self.world.config.scratch_dir.clone(),
            self.launch.job_id,
            self.launch.uid,
        );
        move || sweep::folders(&scratch, job_id, uid)
    }
}

fn stop(cause: Cause) -> v1::agent_message::Message {
    v1::agent_message::Message::Stop(v1::StopOrder { cause: cause.into() })
}
