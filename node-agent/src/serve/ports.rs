//! Who has which port: one for each model's guard, and a window of internal ports for its engine.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use crate::config::PortRange;

/// How many candidates a runner is given: the first that it can bind is its own.
const CANDIDATES: usize = 4;

/// The ports of this node.
#[derive(Debug)]
pub struct Ports {
    guards: PortRange,
    internal: PortRange,
    window: u16,
    bind_address: String,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// With the generation that has it.
    guards: Vec<(u16, String)>,
    windows: Vec<(u16, String)>,
    /// Where the next search begins, so that a port that was just given back rests a while.
    next: u16,
}

/// What one model gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// To be tried in this order.
    pub candidates: Vec<u16>,
    /// First of the engine's window.
    pub internal: u16,
}

impl Ports {
    /// All free.
    pub fn new(config: &crate::config::Agent) -> Self {
        Self {
            guards: config.ports,
            internal: config.internal_ports,
            window: config.internal_ports_per_model,
            bind_address: config.bind_address.clone(),
            taken: Mutex::default(),
        }
    }

    /// Ports for `generation`; `None` if there are none left. Each candidate could be bound a moment ago.
    pub fn take(&self, generation: &str) -> Option<Given> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let used: HashSet<u16> = taken.guards.iter().map(|(port, _)| *port).collect();
        let begin = taken.next.max(self.guards.first);
        let order = self
            .guards
            .iter()
            .filter(|port| *port >= begin)
            .chain(self.guards.iter().filter(|port| *port < begin));
        let free = order.filter(|port| !used.contains(port) && self.can_bind(*port));
        let candidates: Vec<u16> = free.take(CANDIDATES).collect();
        let last = *candidates.last()?;
        let starts = (self.internal.first..=self.internal.last).step_by(usize::from(self.window));
        let mut windows = starts.filter(|first| first.saturating_add(self.window - 1) <= self.internal.last);
        let internal = windows.find(|first| !taken.windows.iter().any(|(used, _)| used == first))?;
        taken
            .guards
            .extend(candidates.iter().map(|port| (*port, generation.to_owned())));
        taken.windows.push((internal, generation.to_owned()));
        taken.next = last
            .checked_add(1)
            .filter(|next| *next <= self.guards.last)
            .unwrap_or(self.guards.first);
        Some(Given { candidates, internal })
    }

    /// `generation` owns `port`, and no other of its candidates. Also for one of a former life of the agent.
    pub fn keep(&self, generation: &str, port: u16, internal: u16) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.guards.retain(|(_, owner)| owner != generation);
        taken.windows.retain(|(_, owner)| owner != generation);
        if port != 0 {
            taken.guards.push((port, generation.to_owned()));
        }
        taken.windows.push((internal, generation.to_owned()));
    }

    /// Gives all of a generation's ports back.
    pub fn release(&self, generation: &str) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.guards.retain(|(_, owner)| owner != generation);
        taken.windows.retain(|(_, owner)| owner != generation);
    }

    fn can_bind(&self, port: u16) -> bool {
        TcpListener::bind((self.bind_address.as_str(), port)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(first: u16, last: u16) -> Ports {
        let config = crate::config::Agent {
            ports: PortRange { first, last },
            internal_ports: PortRange {
                first: 28200,
                last: 28279,
            },
            bind_address: "127.0.0.1".into(),
            ..Default::default()
        };
        Ports::new(&config)
    }

    #[test]
    fn two_models_never_share_a_port_and_a_busy_one_is_passed_over() {
        let ports = ports(28100, 28109);
        let busy = TcpListener::bind("127.0.0.1:28101");
        let (a, b) = (ports.take("a").unwrap(), ports.take("b").unwrap());
        assert!(a.candidates.iter().all(|port| !b.candidates.contains(port)));
        assert!(busy.is_err() || !a.candidates.contains(&28101));
        assert_ne!(a.internal, b.internal);
        assert_eq!(ports.take("c"), None, "two windows are all there are");
        ports.release("a");
        assert!(ports.take("c").is_some());
    }

    #[test]
    fn the_candidates_that_were_not_needed_are_free_again() {
        let ports = ports(28110, 28113);
        let a = ports.take("a").unwrap();
        assert_eq!(ports.take("b"), None);
        ports.keep("a", a.candidates[0], a.internal);
        let b = ports.take("b").unwrap();
        assert!(!b.candidates.contains(&a.candidates[0]));
    }
}
