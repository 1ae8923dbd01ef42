//! A long random walk through a larger world: several jobs, each requeued when it is over, whose node's agent dies for all of them at once.
//! It cannot see everything, as `super` does of its small world, and goes where that cannot: through hundreds of lives, any number of faults.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::world::{Act, Faults, World};
use super::{SIGHTS, Small, promises};

const JOBS: usize = 3;
const MAX_ATTEMPTS: u32 = 3;
const STEPS: u32 = 100_000;

/// One of each may go wrong at any time.
const ALWAYS: Faults = Faults {
    agent_kills: 1,
    runner_kills: 1,
    engine_losses: 1,
    broken_lines: 1,
    refused_steps: 1,
    silences: 1,
    settles: 1,
    quiets: 1,
};

/// The jobs of one node.
struct Node {
    jobs: Vec<World>,
    requeues: u32,
}

impl Node {
    fn new() -> Self {
        Self {
            jobs: vec![World::new(MAX_ATTEMPTS, ALWAYS); JOBS],
            requeues: 0,
        }
    }

    /// Something happens to one of its jobs, or to all. Which, and what.
    fn step(&mut self, random: &mut StdRng) -> (usize, Option<Act>) {
        let which = random.random_range(0..JOBS);
        let job = &mut self.jobs[which];
        job.may_go_wrong(ALWAYS);
        if job.is_job_over() && job.is_at_rest() {
            *job = World::new(MAX_ATTEMPTS, ALWAYS);
            self.requeues += 1;
            return (which, None);
        }
        let mut acts = Vec::new();
        job.by_itself(&mut acts);
        if acts.is_empty() || random.random_ratio(1, 12) {
            acts.clear();
            job.by_fate(&mut acts);
        }
        let Some(act) = acts.choose(random).copied() else {
            return (which, None);
        };
        let was_away = job.is_agent_away();
        job.take(act);
        // They have one agent.
        if job.is_agent_away() != was_away {
            let same = if was_away {
                Act::AgentStarts
            } else {
                Act::AgentKilled
            };
            for (_, other) in self
                .jobs
                .iter_mut()
                .enumerate()
                .filter(|(other, _)| *other != which)
            {
                other.may_go_wrong(ALWAYS);
                other.take(same);
            }
        }
        (which, Some(act))
    }
}

#[test]
fn a_long_walk_through_many_lives_keeps_the_promise() {
    let small = Small {
        max_attempts: MAX_ATTEMPTS,
        faults: ALWAYS,
    };
    for seed in 1..=3 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut node, mut seen) = (Node::new(), BTreeSet::new());
        for step in 0..STEPS {
            let before = node.jobs.clone();
            let (which, act) = node.step(&mut random);
            for (job, before) in node.jobs.iter().zip(before) {
                for promise in promises() {
                    assert!(
                        (promise.condition)(&small, job),
                        "{}: seed {seed}, step {step}: {act:?} of job {which}: {before:#?} = {job:#?}",
                        promise.name
                    );
                }
                seen.extend(
                    SIGHTS
                        .iter()
                        .filter(|(_, see)| see(&small, job))
                        .map(|(name, _)| *name),
                );
            }
        }
        assert!(node.requeues > 100, "seed {seed}: only {} lives", node.requeues);
        assert_eq!(
            seen.len(),
            SIGHTS.len(),
            "seed {seed}: all that was seen: {seen:?}"
        );
    }
}
