//! How long each part of an end may take. Pure arithmetic; the runner obeys it.
//!
//! ```text
//!   asked to end                                                       the kernel kills (KillWait)
//!   ├── leaving ──┼────── drain ──────┼──── term ────┼── kill ──┤  3 s  ┤
//!   catalogs let    what is in flight   vLLM's API      the rest of
//!   go; served on   is finished         process ends    its session, left-overs
//! ```
//!
//! A part that is done early gives its time to those after it.

use std::time::Duration;

/// What Slurm's default KillWait of 30 s leaves, for an agent that did not say.
const USUAL_BUDGET: Duration = Duration::from_secs(27);

/// The catalogs' settle time, for an agent that did not say.
const USUAL_SETTLE: Duration = Duration::from_secs(2);
/// On top of the settle time, for the way.
const WAY: Duration = Duration::from_millis(500);
/// vLLM's drain of what our own did not finish, and its exit (0.4 s idle, up to 2 s with aborted streams).
const TERM: Duration = Duration::from_millis(4000);
/// Killing, removing left-overs, the last message.
const KILL: Duration = Duration::from_millis(1500);
/// What vLLM needs to exit after its own drain.
const TERM_EXIT: Duration = Duration::from_millis(2000);

/// The longest time for each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Until every catalog has let go, serving on.
    pub leaving: Duration,
    /// Until what is in flight is finished.
    pub drain: Duration,
    /// From SIGTERM to the exit of the engine's first process.
    pub term: Duration,
    /// For everything after that.
    pub kill: Duration,
}

impl Parts {
    /// What an end takes where nothing bounds it.
    pub fn unbounded(settle: Duration, wished: Duration) -> Self {
        Self::fit(Duration::MAX, settle, wished)
    }

    /// Divides `budget`. The catalogs have `settle` to let go. The drain gets what was `wished` for it as far as there is room; a budget too small for the usual
    /// parts shrinks all of them alike.
    pub fn fit(budget: Duration, settle: Duration, wished: Duration) -> Self {
        let budget = if budget.is_zero() { USUAL_BUDGET } else { budget };
        let settle = if settle.is_zero() { USUAL_SETTLE } else { settle };
        let leaving = settle.saturating_add(WAY);
        let fixed = leaving.saturating_add(TERM + KILL);
        let usual = Self {
            leaving,
            drain: wished.min(budget.saturating_sub(fixed)),
            term: TERM,
            kill: KILL,
        };
        // A quarter of a small budget stays for the drain, if that is wished for.
        let least = wished.min(budget / 4);
        let room = budget - least;
        if fixed <= room {
            return usual;
        }
        let share = room.as_secs_f64() / fixed.as_secs_f64();
        Self {
            leaving: leaving.mul_f64(share),
            drain: least,
            term: TERM.mul_f64(share),
            kill: KILL.mul_f64(share),
        }
    }

    /// All of them together.
    pub fn total(&self) -> Duration {
        self.leaving
            .saturating_add(self.drain)
            .saturating_add(self.term + self.kill)
    }

    /// What vLLM is told as `--shutdown-timeout`: whole seconds, so that it is gone before its time is up.
    pub fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.term.saturating_sub(TERM_EXIT).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_usual_kill_wait_has_room_for_the_usual_drain() {
        let settle = Duration::from_secs(2);
        let parts = Parts::fit(Duration::from_secs(27), settle, Duration::from_secs(15));
        assert_eq!(
            (parts.leaving, parts.drain),
            (settle + WAY, Duration::from_secs(15))
        );
        assert_eq!(parts.shutdown_timeout(), Duration::from_secs(2));
        assert_eq!(
            Parts::fit(Duration::ZERO, Duration::ZERO, Duration::from_secs(15)),
            parts,
            "not told: the usual"
        );
    }

    #[test]
    fn a_wish_beyond_the_budget_is_cut() {
        let parts = Parts::fit(Duration::from_secs(27), Duration::ZERO, Duration::from_secs(600));
        assert_eq!(parts.total(), Duration::from_secs(27));
    }

    proptest! {
        #[test]
        fn the_sum_fits_and_no_part_is_lost(
            budget_ms in 1u64..600_000, settle_ms in 0u64..60_000, wished_ms in 0u64..3_600_000,
        ) {
            let budget = Duration::from_millis(budget_ms);
            let parts = Parts::fit(budget, Duration::from_millis(settle_ms), Duration::from_millis(wished_ms));
            // Rounding of the shares is all that may be over.
            prop_assert!(parts.total() <= budget + Duration::from_micros(10), "{:?}", parts);
            prop_assert!(!parts.leaving.is_zero() && !parts.term.is_zero() && !parts.kill.is_zero());
            prop_assert!(parts.drain.as_millis() >= u128::from((budget_ms / 4).min(wished_ms)).saturating_sub(1));
            prop_assert!(parts.shutdown_timeout() < parts.term);
        }
    }
}
