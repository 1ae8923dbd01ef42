//! What is in flight: a request counts from its admission to the last byte of its answer, or to the moment its client left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counters of one guard.
#[derive(Debug, Default)]
pub struct Counts {
    in_flight: AtomicU32,
    requests: AtomicU64,
    /// Pieces of answers that came from the engine.
    pieces: AtomicU64,
    idle: Notify,
}

impl Counts {
    /// Requests admitted whose answer is not finished.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Requests admitted so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// Pieces of answers that came from the engine so far: a number that grows is a sign of its life.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// Returns once nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Counts one request in until the ticket is dropped.
    pub fn admit(self: &Arc<Self>) -> Ticket {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.requests.fetch_add(1, Ordering::AcqRel);
        Ticket(self.clone())
    }
}

/// One admitted request.
#[derive(Debug)]
pub struct Ticket(Arc<Counts>);

impl Ticket {
    /// The engine has sent something for it.
    pub fn piece(&self) {
        self.0.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_waits_for_the_last_ticket() {
        let counts = Arc::new(Counts::default());
        counts.idle().await;
        let (first, second) = (counts.admit(), counts.admit());
        assert_eq!(counts.in_flight(), 2);
        drop(first);
        let waiting = tokio::spawn({
            let counts = counts.clone();
            async move { counts.idle().await }
        });
        drop(second);
        waiting.await.expect("idle returns");
        assert_eq!((counts.in_flight(), counts.requests()), (0, 2));
    }
}
