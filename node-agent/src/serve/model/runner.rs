//! A model's runner: taking it in, believing what it says, talking to it, noticing that it is gone.

use std::time::Duration;

use slurm_serve_proto::v1;
use tokio::time::Instant;

use super::{Attach, AttachRefused, LOOK_EVERY, Task};
use crate::serve::process::Known;
use crate::serve::state::{Facts, RunEvent};

impl Task {
    /// A model of a former life of the agent, whose runner is expected back.
    pub(super) fn recover(&mut self) {
        self.facts.port = u32::from(self.launch.port);
        self.runner_deadline = Some(Instant::now() + self.world.config.recover_timeout);
        self.life.last_failure = self.launch.last_failure.as_ref().map(v1::Ending::from);
        self.recover_end();
    }

    pub(super) async fn attach(&mut self, attach: Attach) {
        let hello = &attach.hello;
        let by_secret = !hello.secret.is_empty() && same(&self.secrets.secret, &hello.secret);
        let proven = by_secret
            || by_nonce(
                self.secrets.nonce.as_deref(),
                &hello.nonce,
                self.known_runner(),
                attach.process,
            );
        let refused = if hello.generation != self.run_generation() || self.life.is_without_run() {
            // Of a run that was given up: it is to end.
            Some(AttachRefused::Over)
        } else if !proven {
            Some(AttachRefused::Unproven)
        } else if self
            .outbound
            .as_ref()
            .is_some_and(|outbound| !outbound.is_closed())
            && self.runner_is_alive()
        {
            Some(AttachRefused::Occupied)
        } else {
            None
        };
        if let Some(refused) = refused {
            tracing::warn!(
                generation = self.launch.generation,
                pid = hello.pid,
                ?refused,
                "a runner was sent away"
            );
            let _ = attach.reply.send(Err(refused));
            return;
        }
        self.connection += 1;
        self.launch.runner = Some((attach.process.pid, attach.process.start));
        self.keep();
        // It has its secret: nobody needs the nonce any more.
        if by_secret
            && self.secrets.nonce.take().is_some()
            && let Err(e) = self.keep_secrets()
        {
            tracing::error!("{e}");
        }
        self.outbound = Some(attach.outbound);
        self.unheard = 0;
        (self.launch_deadline, self.runner_deadline) = (None, None);
        let _ = attach.reply.send(Ok(self.connection));
        let welcome = v1::Welcome {
            secret: self.secrets.secret.clone(),
        };
        self.say(v1::agent_message::Message::Welcome(welcome)).await;
        self.view.send_modify(|view| view.recovering = false);
        // First how things stand: one that loads already needs no order.
        if let Some(facts) = attach.hello.facts {
            self.take_facts(facts).await;
        }
        self.run_event(RunEvent::Attached).await;
        self.publish();
    }

    pub(super) async fn take_facts(&mut self, facts: v1::RunnerFacts) {
        self.unheard = 0;
        let said = Facts::of(&facts);
        let (before, same) = (self.life.state, self.facts == facts);
        self.facts = facts;
        self.run_event(RunEvent::Facts(Box::new(said))).await;
        // Most say only that the runner lives.
        if before == self.life.state && !same {
            self.publish();
        }
    }

    pub(super) async fn say(&mut self, message: v1::agent_message::Message) {
        if let Some(outbound) = &self.outbound {
            // A runner that does not read within this is as good as detached; its stream's end will tell.
            let message = v1::AgentMessage {
                message: Some(message),
            };
            let _ = tokio::time::timeout(Duration::from_secs(1), outbound.send(message)).await;
        }
    }

    pub(super) fn runner_is_alive(&self) -> bool {
        self.known_runner().is_some_and(Known::is_alive)
    }

    fn known_runner(&self) -> Option<Known> {
        self.launch.runner.map(|(pid, start)| Known { pid, start })
    }

    /// A model of a former life has a client and a runner that are no children of ours.
    pub(super) async fn look(&mut self) {
        if self.outbound.is_none() && self.launch.runner.is_some() && !self.runner_is_alive() {
            self.run_event(RunEvent::RunnerDied).await;
        } else if self.outbound.is_some() {
            // Counted in looks, not in seconds: while we ourselves get no time, nobody's silence means anything.
            self.unheard = self.unheard.saturating_add(1);
            if LOOK_EVERY * self.unheard >= self.world.config.runner_silence {
                self.run_event(RunEvent::Quiet).await;
            }
        }
    }

    /// It has not come back in time. One that is suspended could not: it is waited for.
    pub(super) async fn runner_is_late(&mut self) {
        let suspended = self.known_runner().is_some_and(Known::is_suspended);
        if !suspended {
            return self.run_event(RunEvent::RunnerDeadline).await;
        }
        self.view.send_modify(|view| view.recovering = false);
        self.runner_deadline = Some(Instant::now() + self.world.config.runner_timeout);
        self.run_event(RunEvent::Quiet).await;
    }
}

/// Compares in a time that tells nothing of where they differ.
pub(super) fn same(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
}

/// The nonce is for the first process that shows it. That one may have to show it again, to the next agent: this one may be killed before its
/// `Welcome` has arrived.
fn by_nonce(nonce: Option<&str>, shown: &str, runner: Option<Known>, process: Known) -> bool {
    nonce.is_some_and(|nonce| same(nonce, shown)) && runner.is_none_or(|runner| runner == process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nonce_is_good_for_one_process_until_it_has_its_secret() {
        let [first, other, of_its_pid] = [(7, 1), (8, 1), (7, 2)].map(|(pid, start)| Known { pid, start });
        assert!(by_nonce(Some("n"), "n", None, first));
        assert!(by_nonce(Some("n"), "n", Some(first), first), "no Welcome came");
        for late in [other, of_its_pid] {
            assert!(!by_nonce(Some("n"), "n", Some(first), late));
        }
        assert!(!by_nonce(Some("n"), "m", None, first));
        assert!(!by_nonce(None, "", None, first), "it has its secret");
    }
}
