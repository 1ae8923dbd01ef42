//! Slurm's KillWait: what of it a model's end may use, and whether that is enough. Nothing here asks anybody: the numbers come in.

use std::time::Duration;

use crate::step::Parts;

/// Slurm's own default, for a slurmctld that does not answer.
pub const USUAL: Duration = Duration::from_secs(30);
/// Kept back for the kill itself.
const RESERVE: Duration = Duration::from_secs(3);
/// slurmd kills no earlier than this, whatever KillWait says.
const SHORTEST: Duration = Duration::from_secs(5);

/// All of a model's end must fit this.
pub fn end_budget(kill_wait: Duration) -> Duration {
    kill_wait.max(SHORTEST) - RESERVE
}

/// What a model's end is configured to take, at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// `agent.settle_timeout`.
    pub settle: Duration,
    /// The longest `drain_timeout` of all recipes.
    pub drain: Duration,
    /// The recipe that has it.
    pub recipe: String,
}

impl Wish {
    /// Of this node's settings and recipes; broken recipes do not count, their own error is told where they are read.
    pub fn of(agent: &crate::config::Agent) -> Self {
        let (recipes, _) = slurm_serve_recipe::RecipeSet::load(&agent.recipes);
        let longest = recipes.iter().max_by_key(|recipe| recipe.drain_timeout);
        Self {
            settle: agent.settle_timeout,
            drain: longest.map_or(Duration::ZERO, |recipe| recipe.drain_timeout),
            recipe: longest.map(|recipe| recipe.name.clone()).unwrap_or_default(),
        }
    }

    /// What is wrong with this KillWait, and what to do about it: one line. `None`: all fits.
    pub fn shortfall(&self, kill_wait: Duration) -> Option<String> {
        let wanted = Parts::unbounded(self.settle, self.drain);
        let needed = wanted.total() + RESERVE;
        if needed <= kill_wait.max(SHORTEST) {
            return None;
        }
        let given = Parts::fit(end_budget(kill_wait), self.settle, self.drain);
        let rest = wanted.term + wanted.kill + RESERVE;
        let drain = match self.recipe.as_str() {
            "" => String::new(),
            name => format!(
                ", {} s for requests in flight (drain_timeout of {name})",
                seconds(self.drain)
            ),
        };
        Some(format!(
            "KillWait is {} s, and the end of a model may take {} s ({} s to leave the catalog{drain}, {} s to stop the engine and clean \
             up): it is cut to fit, and requests in flight at the end of a job get {} s; set KillWait={} or more in slurm.conf{}",
            seconds(kill_wait),
            seconds(needed),
            seconds(wanted.leaving),
            seconds(rest),
            seconds(given.drain),
            needed.as_millis().div_ceil(1000),
            if self.recipe.is_empty() {
                ""
            } else {
                ", or lower drain_timeout in the recipes"
            },
        ))
    }
}

/// `2.5`, `15`.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(drain: u64) -> Wish {
        Wish {
            settle: Duration::from_secs(2),
            drain: Duration::from_secs(drain),
            recipe: "big".into(),
        }
    }

    #[test]
    fn the_defaults_fit_slurms_default() {
        assert_eq!(wish(15).shortfall(USUAL), None);
        assert_eq!(wish(15).shortfall(Duration::from_secs(26)), None);
        assert_eq!(end_budget(USUAL), Duration::from_secs(27));
    }

    #[test]
    fn what_does_not_fit_is_said_in_one_line_with_the_numbers() {
        let line = wish(15).shortfall(Duration::from_secs(5)).expect("too short");
        for part in [
            "KillWait is 5 s",
            "may take 26 s",
            "15 s for requests in flight (drain_timeout of big)",
            "get 0.5 s",
            "KillWait=26",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        assert!(!line.contains('\n'), "{line}");
        assert!(
            wish(60).shortfall(USUAL).is_some(),
            "a longer wish needs a longer KillWait"
        );
    }

    #[test]
    fn what_fits_needs_nothing_cut() {
        for drain in [0, 1, 15, 120] {
            for kill_wait in 0..150 {
                let kill_wait = Duration::from_secs(kill_wait);
                let wish = wish(drain);
                let cut = Parts::fit(end_budget(kill_wait), wish.settle, wish.drain)
                    != Parts::unbounded(wish.settle, wish.drain);
                if cut {
                    assert!(wish.shortfall(kill_wait).is_some(), "{drain} {kill_wait:?}");
                }
            }
        }
    }

    #[test]
    fn the_longest_drain_of_the_recipes_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (name, drain) in [("a", "5s"), ("b", "40s"), ("c", "10s")] {
            let text = format!("source = '/w'\ndrain_timeout = {drain:?}\n");
            std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        }
        let agent = crate::config::Agent {
            recipes: folder.path().into(),
            ..Default::default()
        };
        let wish = Wish::of(&agent);
        assert_eq!((wish.drain.as_secs(), wish.recipe.as_str()), (40, "b"));
    }
}
