//! Who has the model's port: its runner, and the agent when the runner is gone.

use std::os::fd::OwnedFd;

use tokio::time::Instant;

use super::runner::same;
use super::{PortWish, Task};
use crate::serve::port::{Notice, Port};
use crate::serve::process::Known;

impl Task {
    /// Hands the listener to the runner that is attached, or takes it back from it.
    pub(super) fn port_wish(&mut self, wish: PortWish) {
        let Known { pid, start } = wish.process;
        let answer = if self.launch.runner != Some((pid, start)) || !same(&self.secrets.secret, &wish.secret)
        {
            tracing::warn!(
                generation = self.launch.generation,
                pid,
                "somebody who is not the runner asked for its port"
            );
            Err("only the runner that is attached has this port".into())
        } else {
            self.exchange(wish.given)
        };
        // Who does not wait for the answer has gone.
        let _ = wish.reply.send(answer);
    }

    fn exchange(&mut self, given: Option<OwnedFd>) -> Result<Option<OwnedFd>, String> {
        match given {
            Some(given) => {
                self.port.take_back(given)?;
                tracing::info!(
                    generation = self.generation(),
                    port = self.launch.port,
                    "has its port back"
                );
                Ok(None)
            }
            None => self.port.for_runner(&self.world.ports).map(Some),
        }
    }

    /// Whoever sends a request while there is no runner is told so.
    pub(super) fn answer_on_port(&mut self, why: &str) {
        let notice = Notice {
            key: self.secrets.key.clone(),
            model: self.launch.public_name.clone(),
            generation: self.generation(),
            why: why.to_owned(),
        };
        self.port.answer(notice, self.world.ports.clone());
    }

    /// It is over. The port stays ours until every catalog has let go of the model, and until then its launch is remembered: an agent that
    /// is killed meanwhile leaves that to the next one.
    pub(super) fn leave_port(&mut self) {
        let now = Instant::now();
        let revision = self.publish();
        let (world, generation) = (self.world.clone(), self.launch.generation.clone());
        let released = self.view.borrow().released;
        let believed_until = self.believed_until.filter(|until| *until > now);
        if !released || believed_until.is_some() {
            let ending = self.life.ending.clone().unwrap_or_default();
            self.answer_on_port(&ending.text);
        }
        let port = std::mem::replace(&mut self.port, Port::new(0, None));
        tokio::spawn(async move {
            if !released {
                // Whoever has not let go by then never will.
                let until = now + world.config.settle_timeout;
                let _ = tokio::time::timeout_at(until, world.hub.released(revision)).await;
            }
            if let Some(until) = believed_until {
                tokio::time::sleep_until(until).await;
            }
            port.let_go();
            world.ports.release(&generation);
            world.store.forget(&generation);
        });
    }
}
