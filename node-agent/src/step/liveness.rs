//! Whether an engine that lives also answers. An idle one is asked; a busy one is judged by what it gets done.
//!
//! A sign of life is any of these:
//!
//! - a piece of an answer came through the guard;
//! - nothing is in flight, and it does the recipe's unit of work when asked;
//! - something is in flight, `/health` answers, and a number of the engine's own (`/metrics`) has moved: a long prefill moves the cache's
//!   usage, a batch the tokens, though no client has heard anything yet. Of an engine without such numbers `/health` is believed.
//!
//! Without a sign for the recipe's `unresponsive_after` it is taken for hanging, until there is one. Time in which this process itself
//! could not run (a suspended job) does not count.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::ask::ask;
use super::awake::counted;
use super::guard::Counts;
use super::ready::Probe;
use crate::clock::now_ms;

/// How often it is looked at, at least and at most.
const ROUND: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Rounds within the time after which it is unresponsive.
const ROUNDS: u32 = 6;
/// Rounds between two units of work of an idle engine.
const ROUNDS_PER_UNIT: u32 = 3;

/// Watches one engine until it is dropped.
pub struct Liveness {
    /// Since when it is silent, in milliseconds since the epoch; 0: it is not.
    silent: watch::Receiver<i64>,
    task: JoinHandle<()>,
}

impl Liveness {
    /// Watches the engine that `probe` asks and `counts` counts. It has just been ready.
    pub fn watch(probe: Probe, counts: Arc<Counts>, after: Duration) -> Self {
        let (tell, silent) = watch::channel(0);
        let round = (after / ROUNDS).clamp(ROUND.0, ROUND.1);
        let pulse = Pulse {
            pieces: counts.pieces(),
            probe,
            counts,
            round,
            after,
            numbers: 0,
            rounds_since_unit: 0,
            unit: None,
        };
        let task = tokio::spawn(pulse.keep(tell));
        Self { silent, task }
    }

    /// Waits until it falls silent (since when), or is heard again (0). May be dropped and called again.
    pub async fn changed(&mut self) -> i64 {
        match self.silent.changed().await {
            Ok(()) => *self.silent.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Pulse {
    probe: Probe,
    counts: Arc<Counts>,
    round: Duration,
    after: Duration,
    /// As last seen.
    pieces: u64,
    /// A hash of the engine's own numbers, as last seen.
    numbers: u64,
    rounds_since_unit: u32,
    /// A unit of work that it was asked for.
    unit: Option<Unit>,
}

/// Given up when dropped: the engine sees its client leave.
struct Unit(JoinHandle<bool>);

impl Drop for Unit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pulse {
    async fn keep(mut self, tell: watch::Sender<i64>) {
        let mut quiet = Duration::ZERO;
        let mut heard_ms = now_ms();
        loop {
            let began = Instant::now();
            let alive = self.sign().await;
            sleep_until(began + self.round).await;
            if alive {
                (quiet, heard_ms) = (Duration::ZERO, now_ms());
            } else {
                quiet += counted(began.elapsed(), self.round);
            }
            let silent = if quiet >= self.after { heard_ms } else { 0 };
            tell.send_if_modified(|told| std::mem::replace(told, silent) != silent);
        }
    }

    /// Is there a sign of life? Takes about one round at most.
    async fn sign(&mut self) -> bool {
        let pieces = self.counts.pieces();
        if std::mem::replace(&mut self.pieces, pieces) != pieces {
            self.rounds_since_unit = 0;
            return true;
        }
        if let Some(done) = self.asked_unit().await {
            return done;
        }
        let health = ask(&self.probe.socket, "/health", None, self.round).await;
        if !matches!(health, Ok((StatusCode::OK, _))) {
            return false;
        }
        match self.counts.in_flight() {
            0 => self.idle().await,
            _ => self.busy().await,
        }
    }

    /// What has become of a unit of work that was asked for and took longer than its round.
    async fn asked_unit(&mut self) -> Option<bool> {
        let unit = self.unit.as_mut()?;
        let done = timeout(self.round, &mut unit.0).await;
        match done {
            Ok(done) => {
                self.unit = None;
                self.rounds_since_unit = 0;
                Some(done.unwrap_or(false))
            }
            // Work of others has come meanwhile, and says more.
            Err(_) if self.counts.in_flight() > 0 => {
                self.unit = None;
                None
            }
            Err(_) => Some(false),
        }
    }

    async fn idle(&mut self) -> bool {
        self.rounds_since_unit += 1;
        if self.rounds_since_unit < ROUNDS_PER_UNIT {
            return true;
        }
        let Some(unit) = self.probe.unit(self.after) else {
            return true;
        };
        self.unit = Some(Unit(tokio::spawn(unit)));
        self.asked_unit().await.unwrap_or(false)
    }

    async fn busy(&mut self) -> bool {
        let answer = ask(&self.probe.socket, "/metrics", None, self.round).await;
        let Ok((StatusCode::OK, page)) = answer else {
            // One that offers none.
            return answer.is_ok();
        };
        match numbers(&String::from_utf8_lossy(&page)) {
            None => true,
            Some(now) => std::mem::replace(&mut self.numbers, now) != now,
        }
    }
}

/// A hash of all numbers that the engine's own work moves; `None` if there are none. What waits or runs is left out: it moves with what
/// comes in.
fn numbers(page: &str) -> Option<u64> {
    let mut hash = DefaultHasher::new();
    let mut any = false;
    let lines = page
        .lines()
        .filter(|line| line.starts_with("vllm:") && !line.starts_with("vllm:num_requests_"));
    for line in lines {
        line.hash(&mut hash);
        any = true;
    }
    any.then(|| hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_cache_are_progress_and_what_comes_in_is_not() {
        let page = |running: u32, cache: &str, tokens: u32| {
            format!(
                "# HELP vllm:x y\nprocess_cpu_seconds_total {running}\nvllm:num_requests_running{{}} {running}\n\
                 vllm:kv_cache_usage_perc{{}} {cache}\nvllm:generation_tokens_total{{}} {tokens}\n"
            )
        };
        let at_first = numbers(&page(1, "0.1", 5));
        assert_eq!(at_first, numbers(&page(2, "0.1", 5)));
        assert_ne!(at_first, numbers(&page(1, "0.2", 5)));
        assert_ne!(at_first, numbers(&page(1, "0.1", 6)));
        assert_eq!(numbers("process_cpu_seconds_total 1\n"), None);
    }
}
