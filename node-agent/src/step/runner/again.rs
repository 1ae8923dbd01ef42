//! Another attempt with the same port, key, folder and log: the engine was lost, and the recipe allows it.

use std::sync::PoisonError;
use std::time::Duration;

use slurm_serve_proto::v1::RunnerPhase;

use super::Runner;
use super::ears::Ears;
use crate::generation::of_attempt;
use crate::step::awake::awake;
use crate::step::outcome::Outcome;

impl Runner {
    /// Whether what has failed is to be tried again. What was never ready is not: why it cannot come up is of more use than another try.
    pub(super) fn may_try_again(&self, outcome: &Outcome) -> bool {
        let max_attempts = self
            .made
            .recipe
            .as_ref()
            .map_or(1, |recipe| recipe.max_attempts());
        outcome.is_failure() && self.ever_ready && self.attempt < max_attempts
    }

    /// Makes one more attempt after `lost`, up to the moment when it must end.
    pub(super) async fn again(&mut self, lost: Outcome, ears: &mut Ears) -> Outcome {
        self.attempt += 1;
        self.generation = of_attempt(&self.generation, self.attempt);
        self.was_ready = false;
        let (attempt, failure) = (self.attempt, self.told_of(&lost));
        if let Some(guard) = &self.made.guard {
            guard.restarting(lost.text(), &self.generation);
        }
        self.link.facts.send_modify(|facts| {
            facts.phase = RunnerPhase::Restarting as i32;
            facts.attempt = attempt;
            facts.last_failure = Some(failure);
            (facts.engine_pid, facts.silent_since_ms) = (0, 0);
            facts.progress.clear();
        });
        let kill = self.made.parts.map_or(Duration::ZERO, |parts| parts.kill);
        self.kill(kill).await;
        self.made.engine = None;
        self.remove_leftovers();
        let (pause, of) = match &self.made.recipe {
            Some(recipe) => (recipe.pause_before(attempt), recipe.max_attempts()),
            None => (Duration::ZERO, attempt),
        };
        if let Some(log) = &self.made.log {
            let (model, why) = (&self.made.model, lost.text());
            let pause = humantime::format_duration(pause);
            log.say(&format!(
                "{model} was lost: {why}; attempt {attempt} of {of} in {pause}"
            ))
            .await;
            log.again();
        }
        tokio::select! {
            biased;
            outcome = ears.asked() => return outcome,
            () = awake(pause) => {}
        }
        self.phase(RunnerPhase::Loading);
        match self.made.start_engine(&self.link.facts).await {
            Ok(()) => self.use_engine(ears).await,
            Err(failure) => failure.into(),
        }
    }

    fn remove_leftovers(&self) {
        let Some(leftovers) = &self.made.leftovers else {
            return;
        };
        for line in leftovers.lock().unwrap_or_else(PoisonError::into_inner).remove() {
            eprintln!("slurm-serve step: left behind: {line}");
        }
    }
}
