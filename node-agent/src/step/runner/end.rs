//! The whole end of a runner, each part bounded.

use std::process::ExitCode;
use std::sync::PoisonError;
use std::time::Duration;

use slurm_serve_proto::v1::{Ending, RunnerPhase};
use tokio::time::{Instant, timeout};

use super::ears::Ears;
use super::{LAST_OUTPUT, Runner, complain};
use crate::step::ending::Parts;
use crate::step::guard::Door;
use crate::step::leftovers::Leftovers;
use crate::step::outcome::Outcome;

/// An agent that has been away for so long is not waited for when leaving.
const AGENT_AWAY: Duration = Duration::from_millis(500);
/// Of the log, told with a failure.
const TOLD_LINES: usize = 20;
const TOLD_BYTES: usize = 4096;
/// An engine that is not ready has nothing to drain.
const LOADING_TERM: Duration = Duration::from_millis(1500);

impl Runner {
    /// The whole end, each part bounded.
    pub(super) async fn end(mut self, outcome: Outcome, ears: &mut Ears) -> ExitCode {
        let start = Instant::now();
        let failed = outcome.is_failure();
        let parts = self
            .made
            .parts
            .unwrap_or_else(|| Parts::fit(Duration::ZERO, Duration::ZERO, Duration::ZERO));
        self.tell(&outcome);
        if failed {
            if let Some(guard) = &self.made.guard {
                guard.ended(outcome.text());
            }
            // Its memory, on the GPU above all, is free before anything else is waited for.
            self.kill(parts.kill).await;
        }
        if self.was_ready {
            self.leave(ears, start + parts.leaving).await;
        }
        self.phase(RunnerPhase::Draining);
        if !failed {
            self.drain(start + parts.leaving + parts.drain).await;
            self.terminate(if self.was_ready {
                parts.term
            } else {
                LOADING_TERM.min(parts.term)
            })
            .await;
            self.kill(parts.kill).await;
        }
        self.clean(&outcome).await;
        self.phase(RunnerPhase::Done);
        self.link.finish(parts.kill.min(Duration::from_secs(1))).await;
        match &outcome {
            Outcome::Failed(failure, _) => complain(&failure.text),
            Outcome::Asked(..) => ExitCode::SUCCESS,
        }
    }

    /// An end as it is told: with the log's last lines where it failed.
    pub(super) fn told_of(&self, outcome: &Outcome) -> Ending {
        let tail = self.made.log.as_ref().map(|log| log.last(TOLD_LINES, TOLD_BYTES));
        outcome.ending(self.made.log_path.clone(), tail.unwrap_or_default())
    }

    /// LEAVING, with the reason.
    fn tell(&self, outcome: &Outcome) {
        let ending = self.told_of(outcome);
        self.link.facts.send_modify(|facts| {
            facts.phase = RunnerPhase::Leaving as i32;
            facts.ending = Some(ending);
        });
    }

    /// Serves on until every catalog has let go, the time is up, or there is no agent to say so.
    async fn leave(&mut self, ears: &mut Ears, until: Instant) {
        let mut connected = self.link.connected.clone();
        let away = async {
            loop {
                if connected.wait_for(|connected| !connected).await.is_err() {
                    return;
                }
                let back = connected.wait_for(|connected| *connected);
                if timeout(AGENT_AWAY, back).await.is_err() {
                    return;
                }
            }
        };
        let released = async {
            tokio::select! {
                () = ears.released() => {}
                () = away => {}
            }
        };
        let _ = tokio::time::timeout_at(until, released).await;
    }

    /// Refuses what is new, finishes what is in flight.
    async fn drain(&mut self, until: Instant) {
        let Some(guard) = &self.made.guard else { return };
        guard.set(Door::Draining);
        let counts = guard.counts();
        let _ = tokio::time::timeout_at(until, counts.idle()).await;
    }

    async fn terminate(&mut self, within: Duration) {
        self.look_at_leftovers().await;
        if let Some(engine) = &mut self.made.engine {
            engine.terminate(within).await;
        }
        if let Some(guard) = &self.made.guard {
            guard.ended("its time was over");
        }
    }

    pub(super) async fn kill(&mut self, within: Duration) {
        self.look_at_leftovers().await;
        let Some(engine) = &mut self.made.engine else {
            return;
        };
        let left = engine.kill(within).await;
        if !left.is_empty() {
            // In the kernel's hands (a hung file system or driver); Slurm's own kill and its UnkillableStepProgram come next.
            eprintln!("slurm-serve step: processes {left:?} of the engine do not die");
        }
    }

    async fn look_at_leftovers(&self) {
        let (Some(leftovers), Some(engine)) = (self.made.leftovers.clone(), &self.made.engine) else {
            return;
        };
        let pid = engine.pid();
        let look = move || {
            let mut leftovers: std::sync::MutexGuard<'_, Leftovers> =
                leftovers.lock().unwrap_or_else(PoisonError::into_inner);
            leftovers.sample(pid, true);
        };
        let _ = timeout(LAST_OUTPUT, tokio::task::spawn_blocking(look)).await;
    }

    /// Removes what is left, says the last line, frees the port.
    async fn clean(&mut self, outcome: &Outcome) {
        let mut failed = match &self.made.leftovers {
            Some(leftovers) => leftovers.lock().unwrap_or_else(PoisonError::into_inner).remove(),
            None => Vec::new(),
        };
        if let Some(end) = &self.made.log_end {
            let _ = timeout(LAST_OUTPUT, end.cancelled()).await;
        }
        if let Some(log) = &self.made.log {
            log.say(&format!("{} has ended: {}", self.made.model, outcome.text()))
                .await;
        }
        if let Some(private) = self.made.private.take()
            && let Err(e) = private.remove()
        {
            failed.push(format!("{}: {e}", private.path().display()));
        }
        for line in failed {
            eprintln!("slurm-serve step: left behind: {line}");
        }
        if let Some(guard) = self.made.guard.take() {
            guard.close(LAST_OUTPUT).await;
        }
    }
}
