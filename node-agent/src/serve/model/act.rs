//! Carrying out what a model's life decides.

use std::time::Duration;

use nix::sys::signal::Signal;
use slurm_serve_proto::v1::{self, Cause, RunnerPhase};
use tokio::time::Instant;

use super::Task;
use crate::serve::process::Known;
use crate::serve::state::{Action, Event};
use crate::serve::{srun, sweep, users};

/// How long a step that Slurm was not ready for waits before it is tried again, times the number of tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl Task {
    pub(super) async fn act(&mut self, action: Action) {
        let world = self.world.clone();
        let config = &world.config;
        match action {
            Action::StartStep => self.start_step().await,
            Action::RetryStep => self.retry_at = Some(Instant::now() + RETRY_PAUSE * self.life.attempts),
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
            Action::KillStep => self.kill_step().await,
            Action::Close { failed } => self.close(failed),
        }
    }

    pub(super) async fn start_step(&mut self) {
        let (uid, generation) = (self.launch.uid, self.launch.generation.clone());
        let user = users::by_uid(uid).await;
        let log = self.world.store.client_log(&generation);
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
                log: &log,
            })
            .map_err(|e| e.to_string()),
        };
        match started {
            Ok((client, known)) => {
                self.client = Some(client);
                self.launch.client = Some((known.pid, known.start));
                self.keep();
            }
            // Boxed: `event` leads here again, and a future cannot hold itself.
            Err(text) => Box::pin(self.event(Event::StepRefused { text, passing: false })).await,
        }
    }

    pub(super) async fn client_exited(&mut self) {
        self.client = None;
        if self.life.attached {
            // What the runner said last may still be on its way; its stream ends when it does.
            if !self.runner_is_alive() && self.outbound.is_none() {
                self.event(Event::StepExited).await;
            }
            return;
        }
        if self.launch.runner.is_some() {
            self.event(Event::StepExited).await;
            return;
        }
        let text = srun::last_words(&self.world.store.client_log(&self.launch.generation));
        let passing = srun::is_passing(&text);
        self.event(Event::StepRefused { text, passing }).await;
    }

    pub(super) async fn kill_step(&mut self) {
        if self.client.is_none() && self.launch.client.is_none() {
            return;
        }
        let known = self.launch.client.map(|(pid, start)| Known { pid, start });
        let Some(known) = known.filter(|known| known.is_alive()) else {
            return;
        };
        // srun passes a TERM on to the step; what does not end by that is killed.
        known.kill_group(Signal::SIGTERM);
        let client = self.client.take();
        let grace = self.world.config.runner_timeout;
        tokio::spawn(async move {
            let gone = async {
                match client {
                    Some(mut client) => {
                        let _ = client.wait().await;
                    }
                    None => {
                        while known.is_alive() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    }
                }
            };
            if tokio::time::timeout(grace, gone).await.is_err() {
                known.kill_group(Signal::SIGKILL);
            }
        });
    }

    pub(super) fn close(&mut self, failed: bool) {
        self.outbound = None;
        self.view.send_modify(|view| {
            view.released = true;
            view.recovering = false;
        });
        self.world.ports.release(&self.launch.generation);
        self.world.store.forget(&self.launch.generation);
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

    /// A runner that was killed could not remove its folder.
    pub(super) fn sweep(&self) {
        let (scratch, job_id, uid) = (
            self.world.config.scratch_dir.clone(),
            self.launch.job_id,
            self.launch.uid,
        );
        tokio::task::spawn_blocking(move || sweep::folders(&scratch, job_id, uid));
    }
}

fn stop(cause: Cause) -> v1::agent_message::Message {
    v1::agent_message::Message::Stop(v1::StopOrder { cause: cause.into() })
}
