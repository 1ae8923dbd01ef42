//! Callers who fail to prove who they are: told in the log at a bounded rate, and answered ever more slowly.
//!
//! Nobody is locked out: a good credential counts however many bad ones came from the same address, or any user of a login node could shut
//! out the gateway that runs there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

/// What is counted is forgotten after that.
const WINDOW: Duration = Duration::from_secs(60);
/// Failures of one address in a window that are answered at once.
const AT_ONCE: u32 = 10;
/// Failures of one address in a window that the log tells one by one.
const TOLD: u32 = 5;
/// How long the answer to a further one is held back, and how many answers to one address may be.
const HOLD: Duration = Duration::from_secs(1);
const HELD: u32 = 64;
/// Addresses that are counted apart; further ones are counted as one.
const ADDRESSES: usize = 1024;

/// Who has failed how often.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<Option<IpAddr>, Failures>>);

#[derive(Debug)]
struct Failures {
    since: Instant,
    count: u32,
    held: u32,
}

impl Refusals {
    /// A call that proves nothing: what to answer, and not before.
    pub async fn refuse(&self, from: Option<IpAddr>, status: Status) -> Status {
        let from = self.tell(from, status.message());
        {
            let mut all = self.lock();
            let Some(failures) = all.get_mut(&from).filter(|it| it.count > AT_ONCE) else {
                return status;
            };
            if failures.held >= HELD {
                return Status::resource_exhausted(
                    "too many failed attempts from your address; wait a minute",
                );
            }
            failures.held += 1;
        }
        let _held = Held(self, from);
        tokio::time::sleep(HOLD).await;
        status
    }

    /// Counts a failure, and logs it if there were few. Under which address it is counted.
    pub fn tell(&self, from: Option<IpAddr>, why: &str) -> Option<IpAddr> {
        let now = Instant::now();
        let mut all = self.lock();
        let mut from = from.map(|from| from.to_canonical());
        if all.len() >= ADDRESSES && !all.contains_key(&from) {
            all.retain(|_, it| it.held > 0 || now.duration_since(it.since) < WINDOW);
            if all.len() >= ADDRESSES {
                from = None;
            }
        }
        let failures = all.entry(from).or_insert(Failures {
            since: now,
            count: 0,
            held: 0,
        });
        let untold = failures.count.saturating_sub(TOLD);
        let again = now.duration_since(failures.since) >= WINDOW;
        if again {
            (failures.since, failures.count) = (now, 0);
        }
        failures.count = failures.count.saturating_add(1);
        let told = failures.count;
        drop(all);
        let shown = from.map_or_else(|| "addresses beyond count".to_owned(), |from| from.to_string());
        if again && untold > 0 {
            tracing::warn!("{shown}: {untold} more were refused before");
        }
        if told <= TOLD {
            tracing::warn!("{shown} is refused: {why}");
        }
        if told == TOLD {
            tracing::warn!(
                "{shown}: no further refusal is told for up to {} s",
                WINDOW.as_secs()
            );
        }
        from
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Option<IpAddr>, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that is held back.
struct Held<'a>(&'a Refusals, Option<IpAddr>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(failures) = self.0.lock().get_mut(&self.1) {
            failures.held -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn address(n: u32) -> Option<IpAddr> {
        Some(IpAddr::from(std::net::Ipv4Addr::from(n)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_are_answered_at_once_and_further_ones_later() {
        let refusals = Arc::new(Refusals::default());
        let began = Instant::now();
        for _ in 0..AT_ONCE {
            refusals.refuse(address(1), Status::unauthenticated("no")).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        refusals.refuse(address(1), Status::unauthenticated("no")).await;
        assert_eq!(began.elapsed(), HOLD);
        // Another address is not made to wait, and after a while this one isn't either.
        refusals.refuse(address(2), Status::unauthenticated("no")).await;
        tokio::time::advance(WINDOW).await;
        let began = Instant::now();
        refusals.refuse(address(1), Status::unauthenticated("no")).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn few_answers_are_held_back_and_few_addresses_remembered() {
        let refusals = Arc::new(Refusals::default());
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE + HELD + 7 {
            let refusals = refusals.clone();
            asked.spawn(async move {
                refusals
                    .refuse(address(1), Status::unauthenticated("no"))
                    .await
                    .code()
            });
        }
        let codes = asked.join_all().await;
        let beyond = codes
            .iter()
            .filter(|code| **code == tonic::Code::ResourceExhausted)
            .count();
        assert_eq!(beyond, 7);
        for n in 0..5000 {
            refusals.tell(address(n), "no");
        }
        assert!(refusals.lock().len() <= ADDRESSES + 1);
    }
}
