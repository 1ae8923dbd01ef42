//! Every interleaving of a small world: one job with one model, its agent, srun, runner and engine, the gateway, and the messages between
//! them, with so many faults as [`Faults`] allows. The agent's part is the very [`Life`](super::Life) that runs in production; the others are
//! drawn after the code that they stand for: `step/runner` and `step/link` (`runner`), `serve/model` (`agent`), `gateway` (`world`).
//!
//! What must hold is in [`promises`]; the laws of each step of a life are held to here as well.

mod agent;
mod runner;
mod walk;
mod world;

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

use world::{Act, Faults, World};

/// The small world, as stateright wants it.
#[derive(Debug)]
struct Small {
    max_attempts: u32,
    faults: Faults,
}

impl Model for Small {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.max_attempts, self.faults)]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        world.by_itself(acts);
        world.by_fate(acts);
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.take(act);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let sights = SIGHTS.iter().map(|(name, seen)| Property::sometimes(name, *seen));
        promises().into_iter().chain(sights).collect()
    }
}

fn promises() -> Vec<Property<Small>> {
    vec![
        Property::always("the laws hold of every step", |_, world: &World| {
            world.broken.is_none()
        }),
        Property::always(
            "an end that was asked for refuses no request that the gateway may still send",
            |_, world: &World| world.is_forced() || !(world.refuses_in_order() && world.is_routed()),
        ),
        Property::always(
            "once all is heard, the catalog has it exactly while it answers",
            |_, world: &World| !world.all_is_heard() || world.is_listed() == world.should_be_listed(),
        ),
        Property::always(
            "an agent's restart takes nothing out of routing that answers",
            |_, world: &World| !world.was_dropped_by_restart,
        ),
        Property::always("nothing is ever stuck", |_, world: &World| {
            let mut acts = Vec::new();
            world.by_itself(&mut acts);
            // Some may change nothing; those do not count.
            let goes_on = acts.into_iter().any(|act| {
                let mut next = world.clone();
                next.take(act);
                next != *world
            });
            goes_on || world.is_at_rest()
        }),
    ]
}

/// A name, and what is seen.
type Sight = (&'static str, fn(&Small, &World) -> bool);

/// What must be possible, in one world or another: a model in which nothing happens keeps every promise.
const SIGHTS: &[Sight] = &[
    ("it serves", |_, world| world.is_listed()),
    (
        "it serves again, from another step, after the agent was away",
        |_, world| world.is_listed() && world.run() > 1 && world.agent_was_away(),
    ),
    (
        "it serves again, from the same runner, after its engine died",
        |_, world| world.is_listed() && world.run() == 1 && world.attempt() > 1,
    ),
    ("it ends in order, all released", |_, world| {
        world.is_over() && !world.is_forced()
    }),
    ("its job ends while the agent is away", |_, world| {
        world.is_job_over() && world.is_agent_away()
    }),
];

/// Goes through all of one world; says which of [`SIGHTS`] were to be had.
fn check(max_attempts: u32, faults: Faults) -> Vec<&'static str> {
    let checker = Small { max_attempts, faults }
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!("{} states: {faults:?}", checker.unique_state_count());
    assert!(checker.is_done());
    for promise in promises() {
        checker.assert_no_discovery(promise.name);
    }
    let seen = SIGHTS.iter().map(|(name, _)| *name);
    seen.filter(|name| checker.discovery(name).is_some()).collect()
}

/// Faults that come together; each world by itself is small enough to be seen whole.
const WORLDS: &[Faults] = &[
    Faults {
        agent_kills: 1,
        runner_kills: 1,
        engine_losses: 1,
        ..Faults::NONE
    },
    Faults {
        agent_kills: 2,
        refused_steps: 1,
        broken_lines: 1,
        ..Faults::NONE
    },
    Faults {
        runner_kills: 1,
        broken_lines: 1,
        silences: 1,
        quiets: 1,
        ..Faults::NONE
    },
    Faults {
        engine_losses: 2,
        silences: 1,
        settles: 1,
        ..Faults::NONE
    },
];

#[test]
fn every_interleaving_of_a_small_world_keeps_the_promise() {
    let mut seen = BTreeSet::new();
    for faults in WORLDS {
        seen.extend(check(2, *faults));
    }
    let missing: Vec<_> = SIGHTS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !seen.contains(name))
        .collect();
    assert!(missing.is_empty(), "never seen, in no world: {missing:?}");
}
