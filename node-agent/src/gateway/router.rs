//! Which replica answers a request, or why none does.

use std::sync::Arc;

use slurm_serve_proto::v1::{Cause, ModelState};

use super::registry::{Link, Now, Registry};
use super::replica::{Flight, Replica};
use crate::listing::cause_word;

/// Names shown at most to somebody who asked for one that isn't there.
const NAMES_SHOWN: usize = 10;

/// Why no replica was chosen.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// No agent has been heard yet, or none is heard any more: the first reason known.
    NoAgents {
        /// How many there should be.
        agents: usize,
        /// Why one of them is silent; empty while they are being connected.
        why: String,
    },
    /// The name is not known.
    NoSuchModel {
        /// Names that are known, nearest first, at most ten.
        names: Vec<String>,
        /// How many more there are.
        more: usize,
        /// Nodes whose agents are silent, where it might be.
        silent: Vec<String>,
    },
    /// It will be there.
    Loading {
        /// "loading", "being launched", …
        doing: &'static str,
        /// For how long, in seconds.
        seconds: i64,
    },
    /// It is there and answers nothing.
    NotAnswering {
        /// For how long, in seconds.
        seconds: i64,
    },
    /// It is finishing what is in flight, or its job is about to end.
    Ending,
    /// It failed in the last while.
    Failed {
        /// What the agent says happened.
        text: String,
        /// In which job.
        job: u32,
        /// On which node.
        node: String,
    },
    /// It is ready, but cannot be used from here.
    Unusable(&'static str),
    /// Every replica was tried for this request already.
    Exhausted,
}

/// Chooses the replica of `name` with the fewest requests in flight, at random among equals, that is not among those
/// `tried` (generations). The caller holds the registry's lock, so that a replica which left it is chosen no more.
pub fn pick(registry: &Registry, name: &str, tried: &[String], now: Now) -> Result<Flight, Refusal> {
    let meant = meant_by(registry, name);
    let ready = meant.iter().filter(|replica| replica.takes_requests(now.unix_ms));
    let (mut best, mut equals, mut any) = (None::<&Arc<Replica>>, 0_u32, false);
    let rank = |replica: &Replica| (replica.load.is_open(now.unix_ms), replica.load.in_flight());
    for replica in ready {
        any = true;
        if tried.contains(&replica.model.generation) {
            continue;
        }
        let order = best.map(|best| rank(replica).cmp(&rank(best)));
        match order {
            None | Some(std::cmp::Ordering::Less) => (best, equals) = (Some(replica), 1),
            Some(std::cmp::Ordering::Equal) => {
                equals += 1;
                if rand::random_range(0..equals) == 0 {
                    best = Some(replica);
                }
            }
            Some(std::cmp::Ordering::Greater) => {}
        }
    }
    match best {
        Some(replica) => {
            replica.load.chosen(now.unix_ms);
            Ok(Flight::start(replica.clone()))
        }
        None if any => Err(Refusal::Exhausted),
        None => Err(explain(registry, name, &meant, now)),
    }
}

/// All replicas that `name` may mean. A name of the site's is never answered by a user's model, in whatever state its own are.
pub fn meant_by(registry: &Registry, name: &str) -> Vec<Arc<Replica>> {
    let published = registry.replicas().filter(|replica| replica.model.published);
    let mut meant: Vec<_> = published
        .filter(|replica| replica.answers_to(name))
        .cloned()
        .collect();
    if meant.iter().any(|replica| replica.is_bare()) {
        meant.retain(|replica| replica.is_bare());
    }
    meant
}

/// Why none of `meant` takes requests.
fn explain(registry: &Registry, name: &str, meant: &[Arc<Replica>], now: Now) -> Refusal {
    let in_state = |state| meant.iter().filter(move |replica| replica.state() == state);
    if let Some(trouble) = in_state(ModelState::Ready).find_map(|replica| replica.trouble()) {
        return Refusal::Unusable(trouble);
    }
    let since = |state| {
        let since = in_state(state)
            .map(|replica| replica.model.state_since_ms)
            .min()?;
        Some((now.unix_ms - since).max(0) / 1000)
    };
    for (state, doing) in [
        (ModelState::Loading, "loading"),
        (ModelState::Launching, "being launched"),
        (ModelState::Requested, "being launched"),
        (ModelState::Restarting, "being started again"),
    ] {
        if let Some(seconds) = since(state) {
            return Refusal::Loading { doing, seconds };
        }
    }
    if let Some(seconds) = since(ModelState::Unresponsive) {
        return Refusal::NotAnswering { seconds };
    }
    let ending =
        |replica: &&Arc<Replica>| matches!(replica.state(), ModelState::Draining | ModelState::Retiring);
    if meant.iter().any(|replica| ending(&replica)) {
        return Refusal::Ending;
    }
    let remembered = registry.failures().filter(|replica| replica.answers_to(name));
    let over = meant
        .iter()
        .filter(|replica| matches!(replica.state(), ModelState::Failed | ModelState::Ended));
    let last = over
        .chain(remembered)
        .max_by_key(|replica| replica.model.state_since_ms);
    match last {
        Some(replica) if replica.state() == ModelState::Failed => Refusal::Failed {
            text: ending_text(replica),
            job: replica.model.job_id,
            node: replica.model.node.clone(),
        },
        _ => unknown(registry, name),
    }
}

/// What its agent says of a failure; what others than the owner may read.
pub fn ending_text(replica: &Replica) -> String {
    let ending = replica.model.ending.as_ref();
    match ending {
        Some(ending) if !ending.text.is_empty() => ending.text.clone(),
        Some(ending) => match Cause::try_from(ending.cause) {
            Ok(cause) if cause != Cause::Unspecified => cause_word(cause).replace('_', " "),
            _ => "its agent told no reason".to_owned(),
        },
        None => "its agent told no reason".to_owned(),
    }
}

fn unknown(registry: &Registry, name: &str) -> Refusal {
    let (mut silent, mut why, mut heard) = (Vec::new(), String::new(), false);
    for (node, known) in registry.nodes() {
        match &known.link {
            Link::Connected => heard = true,
            Link::Connecting => silent.push(node.clone()),
            Link::Silent(reason) => {
                if why.is_empty() {
                    why = format!("{node}: {reason}");
                }
                silent.push(node.clone());
            }
        }
    }
    let mut names = names(registry);
    if !heard && names.is_empty() {
        return Refusal::NoAgents {
            agents: silent.len(),
            why,
        };
    }
    let nearness = |other: &String| strsim::normalized_damerau_levenshtein(name, other);
    names.sort_by(|one, other| nearness(other).total_cmp(&nearness(one)));
    let more = names.len().saturating_sub(NAMES_SHOWN);
    names.truncate(NAMES_SHOWN);
    Refusal::NoSuchModel { names, more, silent }
}

/// The public names of what is ready or will be.
fn names(registry: &Registry) -> Vec<String> {
    let live = registry.replicas().filter(|replica| {
        use ModelState::{Launching, Loading, Ready, Requested, Restarting, Unresponsive};
        let state = replica.state();
        replica.model.published
            && matches!(
                state,
                Requested | Launching | Loading | Ready | Restarting | Unresponsive
            )
    });
    let names: std::collections::BTreeSet<_> = live.map(|replica| replica.model.name.clone()).collect();
    names.into_iter().collect()
}

#[cfg(test)]
mod tests;
