//! The guard: the one door through which requests reach the engine.
//!
//! A streaming reverse proxy on the job's port, in front of the engine's Unix socket. It demands the job's key on every path
//! (vLLM's own `--api-key` leaves `/metrics`, `/tokenize`, `/pause` … open) but `/health`, where it says no more than whether it takes requests;
//! proxies that can send no key may be let in by their address (`agent.peers`). It lets a fixed list of paths through, counts what is in
//! flight, and holds nothing but a few buffers of bounded size for each connection.
//!
//! ```text
//!    ┌─────── Restarting <──┐
//!    v                      │
//! Loading ──> Open ─────────┴──> Draining ──> Ended      what a request meets: passed on when Open, else 503 and close
//!    │         ^ v                   ^          ^        (401 without the key and 404/405 off the list come first, always)
//!    │    Unresponsive ──────────────┘          │
//!    └──────────────────────────────────────────┘
//! ```
//!
//! While an engine is Unresponsive new requests are refused at once: they would hang like those that it has, and who is told can go elsewhere or
//! try again. Those in flight are left to the engine and their clients.

mod allow;
mod bearer;
mod body;
mod counts;
mod headers;
mod pass;
mod reply;
mod serve;
mod upstream;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::network::Network;

pub use allow::WORK;
pub use counts::Counts;

/// Whether requests are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The engine has not done its first unit of work yet.
    Loading = 0,
    /// Requests are passed on.
    Open = 1,
    /// New requests are refused, those in flight go on.
    Draining = 2,
    /// There is no engine any more.
    Ended = 3,
    /// The engine answers nothing just now.
    Unresponsive = 4,
    /// The engine was lost, and is started again.
    Restarting = 5,
}

impl Door {
    fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Loading,
            1 => Self::Open,
            2 => Self::Draining,
            4 => Self::Unresponsive,
            5 => Self::Restarting,
            _ => Self::Ended,
        }
    }

    /// As [`GuardStatus`](crate::guard_status::GuardStatus) tells it.
    fn word(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Open => crate::guard_status::GuardStatus::READY,
            Self::Draining => "draining",
            Self::Ended => "ended",
            Self::Unresponsive => "unresponsive",
            Self::Restarting => "restarting",
        }
    }
}

/// What every connection shares.
struct Shared {
    door: AtomicU8,
    /// Why it ended, or is started again, for those who ask.
    why: Mutex<String>,
    counts: Arc<Counts>,
    key: bearer::Key,
    /// From these addresses nobody needs it.
    peers: Vec<Network>,
    /// The public name, for messages.
    model: String,
    /// Which attempt this is, for those who ask.
    generation: Mutex<String>,
    upstream: upstream::Upstream,
}

impl Shared {
    fn door(&self) -> Door {
        Door::from_u8(self.door.load(Ordering::Acquire))
    }
}

/// The running guard. Dropping it closes the port at once; [`Guard::close`] does so with manners.
pub struct Guard {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: CancellationToken,
    accepting: tokio::task::JoinHandle<()>,
}

impl Guard {
    /// Serves on `listener`, door [`Door::Loading`], for the engine that will listen on `socket`. Who comes from `peers` needs no key. Must be called
    /// in a runtime.
    pub fn open(
        listener: TcpListener,
        socket: &Path,
        key: &str,
        model: &str,
        generation: &str,
        peers: Vec<Network>,
    ) -> std::io::Result<Self> {
        let shared = Shared {
            peers,
            door: AtomicU8::new(Door::Loading as u8),
            why: Mutex::default(),
            counts: Arc::new(Counts::default()),
            key: bearer::Key::new(key),
            model: model.to_owned(),
            generation: Mutex::new(generation.to_owned()),
            upstream: upstream::Upstream::new(socket),
        };
        Self::serve(listener, shared, serve::places())
    }

    /// The same behind whose door nothing is any more, because of `why`; for at most so many connections at once.
    pub fn without_engine(
        listener: TcpListener,
        places: usize,
        key: &str,
        model: &str,
        generation: &str,
        why: &str,
    ) -> std::io::Result<Self> {
        let shared = Shared {
            peers: Vec::new(),
            door: AtomicU8::new(Door::Ended as u8),
            why: Mutex::new(why.to_owned()),
            counts: Arc::new(Counts::default()),
            key: bearer::Key::new(key),
            model: model.to_owned(),
            generation: Mutex::new(generation.to_owned()),
            upstream: upstream::Upstream::new(Path::new("")),
        };
        Self::serve(listener, shared, places)
    }

    fn serve(listener: TcpListener, shared: Shared, places: usize) -> std::io::Result<Self> {
        let (address, shared) = (listener.local_addr()?, Arc::new(shared));
        let stop = CancellationToken::new();
        let accepting = tokio::spawn(serve::serve(listener, shared.clone(), places, stop.clone()));
        Ok(Self {
            shared,
            address,
            stop,
            accepting,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests in flight and passed so far.
    pub fn counts(&self) -> Arc<Counts> {
        self.shared.counts.clone()
    }

    /// From now on requests meet this door.
    pub fn set(&self, door: Door) {
        self.shared.door.store(door as u8, Ordering::Release);
    }

    /// There is no engine any more, because of `why`: whoever still asks is told.
    pub fn ended(&self, why: &str) {
        *self.shared.why.lock().unwrap_or_else(PoisonError::into_inner) = why.to_owned();
        self.set(Door::Ended);
    }

    /// The engine was lost because of `why`, and another is started behind the same door, under this generation.
    pub fn restarting(&self, why: &str, generation: &str) {
        *self.shared.why.lock().unwrap_or_else(PoisonError::into_inner) = why.to_owned();
        generation.clone_into(
            &mut self
                .shared
                .generation
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.set(Door::Restarting);
    }

    /// Frees the port and lets answers that are being written be written, for at most `within`.
    pub async fn close(mut self, within: Duration) {
        self.stop.cancel();
        // The listener is gone once this task has noticed; what remains of the wait is for the connections.
        let _ = tokio::time::timeout(within, &mut self.accepting).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
