//! One replica of a model as the gateway knows it, and how much is on its way to it.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::uri::Authority;
use slurm_serve_proto::v1::{Model, ModelState};
use slurm_serve_recipe::published_user;
use tokio::sync::Notify;

/// From our socket into the hands of a guard: what a request may take on the wire and in the guard's queue.
const ARRIVAL: Duration = Duration::from_millis(20);

/// How long the circuit of a replica is open after one failure, and at most.
const OPEN_MS: i64 = 2000;
const LONGEST_OPEN_MS: i64 = 60_000;

/// A model as an agent announced it, with its key opened, before it is entered into the registry.
#[derive(Debug, Clone)]
pub struct Announced {
    /// As the agent sent it; the sealed key in it is never kept.
    pub model: Model,
    /// `Bearer KEY`, marked sensitive; `None` for a model that takes no requests, or whose key could not be had.
    pub bearer: Option<HeaderValue>,
}

/// One launch of a model, in one job, on one node. Never changed: a new announcement makes a new one with the same [`Load`].
#[derive(Debug)]
pub struct Replica {
    /// What the agent says of it; `key` is empty.
    pub model: Model,
    /// `Bearer KEY` for the guard.
    pub bearer: Option<HeaderValue>,
    /// `HOST:PORT` of the guard, if the model has one.
    pub guard: Option<Authority>,
    /// What this gateway has under way there.
    pub load: Arc<Load>,
}

impl Replica {
    /// Enters what was announced, keeping the `load` of the same generation.
    pub fn new(announced: Announced, load: Arc<Load>) -> Self {
        let mut model = announced.model;
        model.key.clear();
        let guard = guard_of(&model.base_url);
        Self {
            model,
            bearer: announced.bearer,
            guard,
            load,
        }
    }

    /// Where it is in its life.
    pub fn state(&self) -> ModelState {
        ModelState::try_from(self.model.state).unwrap_or_default()
    }

    /// Whether a request may be sent to it at `now_ms` (milliseconds since the epoch).
    pub fn takes_requests(&self, now_ms: i64) -> bool {
        self.state() == ModelState::Ready
            && self.model.published
            && !self.is_expired(now_ms)
            && self.trouble().is_none()
    }

    /// Why a ready model cannot be used from here; one line for the administrator.
    pub fn trouble(&self) -> Option<&'static str> {
        if self.state() != ModelState::Ready {
            None
        } else if self.guard.is_none() {
            Some("its agent told no usable address")
        } else if self.bearer.is_none() {
            Some(
                "its key could not be had; this gateway's user needs the role `proxy`, and munge must work here",
            )
        } else {
            None
        }
    }

    /// When its job must have ended by Slurm's books, in milliseconds since the epoch. What is over already doesn't expire:
    /// why it ended is still of use.
    pub fn expires_ms(&self) -> Option<i64> {
        let lives = !matches!(self.state(), ModelState::Ended | ModelState::Failed);
        Some(self.model.expires_ms).filter(|ms| lives && *ms != 0)
    }

    /// Whether that moment has come.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms().is_some_and(|ms| ms <= now_ms)
    }

    /// Whether it stands under a name of the site's, not of its owner's.
    pub fn is_bare(&self) -> bool {
        !is_of(&self.model.owner, &self.model.name)
    }

    /// Whether a client may mean it by `name`. What a user named answers within that user's names alone, so that nobody can
    /// draw requests to himself by an alias.
    pub fn answers_to(&self, name: &str) -> bool {
        let aliases = &self.model.aliases;
        self.model.name == name
            || aliases.iter().any(|alias| alias == name) && (self.is_bare() || is_of(&self.model.owner, name))
    }
}

/// Whether `name` is `owner/…`.
fn is_of(owner: &str, name: &str) -> bool {
    name.strip_prefix(published_user(owner).as_str())
        .is_some_and(|rest| rest.starts_with('/'))
}

/// `http://HOST:PORT/v1` → `HOST:PORT`.
fn guard_of(base_url: &str) -> Option<Authority> {
    let uri: http::Uri = base_url.parse().ok()?;
    let plain = uri.scheme() == Some(&http::uri::Scheme::HTTP);
    uri.authority().filter(|_| plain).cloned()
}

/// What this gateway has under way to one generation, counted by guards that are dropped when it is over.
#[derive(Debug, Default)]
pub struct Load {
    /// From the choice of the replica to the last byte of its answer.
    in_flight: AtomicUsize,
    /// From the choice of the replica until the request was handed to its connection.
    leaving: AtomicUsize,
    left: Notify,
    /// When a request was handed to its connection last.
    last_left: Mutex<Option<Instant>>,
    /// Its circuit: failures in a row, and until when it is open, in milliseconds since the epoch.
    failures: AtomicU32,
    open_until_ms: AtomicI64,
}

impl Load {
    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Waits until every request that was meant for it has left this process and had the time to arrive: only then can the agent
    /// be told that nothing more will come.
    pub async fn settled(&self) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.leaving.load(Ordering::SeqCst) == 0 {
                break;
            }
            left.await;
        }
        let last = *self.last_left();
        if let Some(last) = last {
            tokio::time::sleep_until((last + ARRIVAL).into()).await;
        }
    }

    fn last_left(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It could not be reached, or broke off: others are preferred for a while, twice as long with each failure in a row.
    pub fn failed(&self, now_ms: i64) {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let open = OPEN_MS.saturating_mul(1 << before.min(16)).min(LONGEST_OPEN_MS);
        self.open_until_ms.store(now_ms + open, Ordering::Relaxed);
    }

    /// It answered.
    pub fn answered(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open_until_ms.store(0, Ordering::Relaxed);
    }

    /// Whether others are to be preferred. One that is alone is asked all the same.
    pub fn is_open(&self, now_ms: i64) -> bool {
        now_ms < self.open_until_ms.load(Ordering::Relaxed)
    }

    /// It has been chosen. After failures one request tries it; the rest waits for how that goes.
    pub fn chosen(&self, now_ms: i64) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            let until = self.open_until_ms.load(Ordering::Relaxed).max(now_ms + OPEN_MS);
            self.open_until_ms.store(until, Ordering::Relaxed);
        }
    }
}

/// A request on its way: counts in [`Load::in_flight`] until dropped.
#[derive(Debug)]
pub struct Flight {
    /// Where it goes.
    pub replica: Arc<Replica>,
    departure: Option<Departure>,
}

impl Flight {
    /// Starts one.
    pub fn start(replica: Arc<Replica>) -> Self {
        replica.load.in_flight.fetch_add(1, Ordering::Relaxed);
        replica.load.leaving.fetch_add(1, Ordering::SeqCst);
        let departure = Some(Departure(replica.load.clone()));
        Self { replica, departure }
    }

    /// To be dropped as soon as the request is out of our hands.
    pub fn departure(&mut self) -> Option<Departure> {
        self.departure.take()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.replica.load.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that has been given a replica and not yet been sent; see [`Load::settled`].
#[derive(Debug)]
pub struct Departure(Arc<Load>);

impl Drop for Departure {
    fn drop(&mut self) {
        *self.0.last_left() = Some(Instant::now());
        if self.0.leaving.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(owner: &str, name: &str, aliases: &[&str]) -> Replica {
        let model = Model {
            name: name.into(),
            owner: owner.into(),
            aliases: aliases.iter().map(|a| (*a).to_owned()).collect(),
            base_url: "http://10.0.0.7:18100/v1".into(),
            key: "sealed".into(),
            published: true,
            state: ModelState::Ready.into(),
            ..Model::default()
        };
        Replica::new(Announced { model, bearer: None }, Arc::default())
    }

    #[test]
    fn a_users_model_answers_within_that_users_names_alone() {
        let own = replica("eve", "eve/tiny", &["gpt-oss-120b", "eve/small", "evelyn/x"]);
        assert!(own.answers_to("eve/tiny") && own.answers_to("eve/small"));
        assert!(!own.answers_to("gpt-oss-120b") && !own.answers_to("evelyn/x"));
        assert!(replica("eve", "tiny", &["small"]).answers_to("small"));
        let directorys = replica("DOM\\eve", "DOM+eve/tiny", &["gpt-oss-120b"]);
        assert!(directorys.answers_to("DOM+eve/tiny") && !directorys.answers_to("gpt-oss-120b"));
    }

    #[test]
    fn no_key_is_kept_and_without_one_nothing_is_sent() {
        let replica = replica("ada", "tiny", &[]);
        assert_eq!(replica.model.key, "");
        assert!(!replica.takes_requests(0) && replica.trouble().is_some());
        assert_eq!(replica.guard.as_ref().unwrap().as_str(), "10.0.0.7:18100");
    }

    #[test]
    fn an_address_that_is_none_is_no_guard() {
        for bad in ["", "/v1", "https://a:1/v1", "http://", "unix:/x"] {
            assert!(guard_of(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_circuit_opens_for_longer_with_each_failure_and_closes_with_an_answer() {
        let load = Load::default();
        load.failed(0);
        assert!(load.is_open(1999) && !load.is_open(2000));
        load.chosen(2000);
        assert!(load.is_open(2001), "one tries it, the rest waits");
        load.failed(2500);
        assert!(load.is_open(6499) && !load.is_open(6500));
        (0..40).for_each(|_| load.failed(10_000));
        assert!(load.is_open(69_999) && !load.is_open(70_000));
        load.answered();
        assert!(!load.is_open(10_001));
    }

    #[tokio::test]
    async fn a_load_is_settled_once_each_request_has_left() {
        let replica = Arc::new(replica("ada", "tiny", &[]));
        let mut flight = Flight::start(replica.clone());
        let load = replica.load.clone();
        let waiting = tokio::spawn(async move { load.settled().await });
        drop(flight.departure());
        waiting.await.unwrap();
        assert_eq!(replica.load.in_flight(), 1);
        drop(flight);
        assert_eq!(replica.load.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_flight_that_is_given_up_has_left_too() {
        let replica = Arc::new(replica("ada", "tiny", &[]));
        drop(Flight::start(replica.clone()));
        replica.load.settled().await;
    }
}
