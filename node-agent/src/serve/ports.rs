//! Who has which port: one for each model's guard, bound by the agent itself, and a window of internal ports for its engine.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use crate::config::PortRange;

/// Connections that wait to be accepted; the kernel's net.core.somaxconn may allow fewer.
pub(super) const BACKLOG: i32 = 1024;

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
#[derive(Debug)]
pub struct Given {
    /// The guard's.
    pub port: u16,
    /// It listens there already.
    pub listener: TcpListener,
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

    /// Ports for `generation`; `None` if there are none left.
    pub fn take(&self, generation: &str) -> Option<Given> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let starts = (self.internal.first..=self.internal.last).step_by(usize::from(self.window));
        let mut windows = starts.filter(|first| first.saturating_add(self.window - 1) <= self.internal.last);
        let internal = windows.find(|first| !taken.windows.iter().any(|(used, _)| used == first))?;
        let used: HashSet<u16> = taken.guards.iter().map(|(port, _)| *port).collect();
        let begin = taken.next.max(self.guards.first);
        let order = self
            .guards
            .iter()
            .filter(|port| *port >= begin)
            .chain(self.guards.iter().filter(|port| *port < begin));
        let mut free = order.filter(|port| !used.contains(port));
        let (port, listener) = free.find_map(|port| Some((port, self.bind(port).ok()?)))?;
        taken.guards.push((port, generation.to_owned()));
        taken.windows.push((internal, generation.to_owned()));
        taken.next = port
            .checked_add(1)
            .filter(|next| *next <= self.guards.last)
            .unwrap_or(self.guards.first);
        Some(Given {
            port,
            listener,
            internal,
        })
    }

    /// `generation`, which is of a former life of the agent, has these.
    pub fn keep(&self, generation: &str, port: u16, internal: u16) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.guards.push((port, generation.to_owned()));
        taken.windows.push((internal, generation.to_owned()));
    }

    /// Gives all of a generation's ports back.
    pub fn release(&self, generation: &str) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.guards.retain(|(_, owner)| owner != generation);
        taken.windows.retain(|(_, owner)| owner != generation);
    }

    /// Listens on a port: as root, so that nobody else can beside it.
    pub fn bind(&self, port: u16) -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind((self.bind_address.as_str(), port))?;
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
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
        assert_ne!(a.port, b.port);
        assert!(busy.is_err() || (a.port != 28101 && b.port != 28101));
        assert_ne!(a.internal, b.internal);
        assert_eq!(a.listener.local_addr().unwrap().port(), a.port);
        assert!(ports.take("c").is_none(), "two windows are all there are");
        ports.release("a");
        assert!(ports.take("c").is_some());
    }

    #[test]
    fn a_port_of_a_former_life_is_nobody_elses() {
        let ports = ports(28110, 28111);
        ports.keep("before", 28110, 28200);
        let a = ports.take("a").unwrap();
        assert_eq!((a.port, a.internal), (28111, 28240));
        ports.release("before");
        drop(a);
        ports.release("a");
        assert!(ports.take("b").is_some());
    }
}
