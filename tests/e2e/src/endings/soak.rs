//! Scenarios at random, one after the other, beside two models that nothing of it may touch.
//!
//! The seed decides which scenario comes when and after what pause, so a run can be had again: same seed, same build.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::report::Verdict;
use super::row::Row;
use super::rows::all;
use super::run::play_after;
use super::watch::Watch;
use crate::job::Job;
use crate::site::Site;

/// The longest pause under load before a blow.
const LONGEST_PAUSE_MS: u64 = 1500;

/// What a soak showed.
#[derive(Debug, Default)]
pub struct Summary {
    /// How often each scenario was played, and the longest time it took a model to be gone.
    played: BTreeMap<&'static str, (usize, f64)>,
    /// Requests sent to the models of scenarios.
    asked: usize,
    /// Requests answered by the two beside them.
    beside: usize,
    /// What went against a scenario's bound or the invariant.
    pub violations: Vec<String>,
}

impl Summary {
    /// For people.
    pub fn text(&self, seed: u64) -> String {
        let mut text = String::new();
        for (name, (count, longest)) in &self.played {
            let longest = if *longest > 0.0 {
                format!(", gone after {longest:.2} s at the latest")
            } else {
                String::new()
            };
            let _ = writeln!(text, "  {count:4} × {name}{longest}");
        }
        let count: usize = self.played.values().map(|(count, _)| count).sum();
        let _ = writeln!(
            text,
            "\n  seed {seed}: {count} scenarios, {} requests to their models, {} answered by the models beside them, {} violations",
            self.asked,
            self.beside,
            self.violations.len()
        );
        for violation in &self.violations {
            let _ = writeln!(text, "\nVIOLATION: {violation}");
        }
        text
    }
}

/// Plays for so long; `say` gets a line for each scenario.
pub fn soak(site: &Site, length: Duration, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Summary> {
    let mut random = StdRng::seed_from_u64(seed);
    let rows: Vec<&Row> = all().filter(|row| row.soak && row.pending.is_none()).collect();
    let beside = [1, 2].map(|number| beside(site, number));
    let [near, far] = beside;
    let beside = [near?, far?];
    let end = Instant::now() + length;
    let mut summary = Summary::default();
    site.watch("stub", |watch| {
        for (_, generation) in &beside {
            serve_lab::wait_for(
                Duration::from_secs(30),
                "the models beside in the catalog",
                || Ok(watch.is_listed(generation).then_some(())),
            )?;
        }
        while Instant::now() < end {
            let row = rows.choose(&mut random).copied().expect("there are rows to soak");
            let pause = Duration::from_millis(random.random_range(0..=LONGEST_PAUSE_MS));
            let since = Instant::now();
            let one = play_after(site, row, pause);
            let entry = summary.played.entry(row.name).or_default();
            entry.0 += 1;
            entry.1 = entry.1.max(one.seconds.unwrap_or(0.0));
            summary.asked += one.asked;
            say(&format!("{}: {}", row.name, one.figure()));
            if let Verdict::Failed(why) = &one.verdict {
                summary.violations.push(format!("{}: {why}", row.name));
            }
            if let Err(why) = untouched(watch, &beside, since) {
                summary.violations.push(format!("after {}: {why:#}", row.name));
            }
        }
        summary.beside = watch.answered();
        Ok(())
    })?;
    Ok(summary)
}

/// A model of bob's that serves all the time.
fn beside(site: &Site, number: usize) -> Result<(Job<'_>, String)> {
    let node = site.node(number).name();
    let job = site.sbatch("bob", &["-w", node, "--serve-model=stub"], "sleep infinity")?;
    let model = job.wait_model("ready")?;
    Ok((job, model["generation"].as_str().unwrap_or_default().to_owned()))
}

/// Neither has left the catalog, no request to them was lost, and both are as they were.
fn untouched(watch: &Watch, beside: &[(Job, String)], since: Instant) -> Result<()> {
    let lost = watch.lost(Some(since));
    ensure!(lost.is_empty(), "requests to a model beside were lost: {lost:?}");
    for (job, generation) in beside {
        ensure!(
            watch.gone(generation, since).is_none(),
            "the model of job {} left the catalog",
            job.id
        );
        let model = job.model()?;
        ensure!(
            model["state"] == "ready" && model["generation"] == **generation,
            "{model}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_is_the_same_run() {
        let rows: Vec<&Row> = all().filter(|row| row.soak).collect();
        let run = |seed| -> Vec<&str> {
            let mut random = StdRng::seed_from_u64(seed);
            (0..20)
                .filter_map(|_| rows.choose(&mut random))
                .map(|row| row.name)
                .collect()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
