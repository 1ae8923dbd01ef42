//! The runner and its engine, after `step/runner` and `step/link`.

use slurm_serve_proto::v1::{Cause, RunnerPhase};

use super::super::{Facts, asked_ending, failure};

/// One runner, from the moment srun has started it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Runner {
    /// Which run it is of.
    pub run: u32,
    /// Which attempt it is at.
    pub attempt: u32,
    /// What it says of itself.
    pub phase: RunnerPhase,
    /// Why it ends.
    pub ending: Option<Cause>,
    /// Its engine answers nothing.
    pub silent: bool,
    /// Was an attempt ready?
    pub ever_ready: bool,
    /// Was this one?
    pub was_ready: bool,
    /// Every catalog has let go, or it waits no longer.
    pub released: bool,
}

impl Runner {
    /// Just started; it has no order yet.
    pub fn new(run: u32) -> Self {
        Self {
            run,
            attempt: 0,
            phase: RunnerPhase::Unspecified,
            ending: None,
            silent: false,
            ever_ready: false,
            was_ready: false,
            released: false,
        }
    }

    /// What it tells the agent.
    pub fn facts(&self) -> Facts {
        Facts {
            phase: self.phase,
            attempt: self.attempt,
            ending: self.ending.map(|cause| match super::super::is_asked(cause) {
                true => asked_ending(cause),
                false => failure(cause, "", ""),
            }),
            last_failure: None,
            silent: self.silent,
        }
    }

    /// It refuses new requests because somebody wanted it to end.
    pub fn refuses_in_order(&self) -> bool {
        matches!(self.phase, RunnerPhase::Draining | RunnerPhase::Done)
            && self.was_ready
            && self.ended_by_request()
    }

    fn ended_by_request(&self) -> bool {
        self.ending.is_some_and(super::super::is_asked)
    }

    /// The order came.
    pub fn order(&mut self, attempt: u32) {
        if self.phase == RunnerPhase::Unspecified {
            (self.attempt, self.ever_ready) = (attempt, attempt > 1);
            self.phase = RunnerPhase::Loading;
        }
    }

    /// Somebody wants it to end. False: it had nothing to serve yet, and is gone.
    pub fn asked(&mut self, cause: Cause) -> bool {
        if self.phase == RunnerPhase::Unspecified {
            return false;
        }
        if self.ending.is_none() {
            self.leave(cause);
        }
        true
    }

    /// The engine did its first unit of work.
    pub fn ready(&mut self) {
        self.phase = RunnerPhase::Ready;
        (self.was_ready, self.ever_ready) = (true, true);
    }

    /// The engine is gone, or cannot come up.
    pub fn lose_engine(&mut self, max_attempts: u32) {
        self.silent = false;
        if self.ever_ready && self.attempt < max_attempts {
            self.attempt += 1;
            self.phase = RunnerPhase::Restarting;
            self.was_ready = false;
        } else {
            self.leave(Cause::EngineDied);
        }
    }

    fn leave(&mut self, cause: Cause) {
        self.ending = Some(cause);
        self.phase = RunnerPhase::Leaving;
        // Only what was ready waits for the catalogs.
        self.released = !self.was_ready;
    }

    /// The next thing that it does by itself, without waiting for anybody. False: nothing.
    pub fn proceed(&mut self) -> bool {
        self.phase = match self.phase {
            RunnerPhase::Restarting => RunnerPhase::Loading,
            RunnerPhase::Leaving if self.released => RunnerPhase::Draining,
            RunnerPhase::Draining => RunnerPhase::Done,
            _ => return false,
        };
        true
    }
}
