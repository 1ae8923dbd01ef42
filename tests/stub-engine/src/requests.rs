//! The last requests as they arrived, so that a test can see what a proxy in front made of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use http::Request;
use serde::Serialize;

use crate::engine::Engine;

/// So many are kept.
const KEPT: usize = 64;

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Still being read or answered.
    Open,
    /// Answered in full.
    Done,
    /// The client went first, or the connection was cut.
    Gone,
}

/// One request.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    id: u64,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body_bytes: u64,
    outcome: Outcome,
}

/// The list.
#[derive(Default)]
pub struct Requests(Mutex<(u64, VecDeque<Seen>)>);

impl Requests {
    /// The last ones, oldest first.
    pub fn list(&self) -> Vec<Seen> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .iter()
            .cloned()
            .collect()
    }

    fn open<B>(&self, request: &Request<B>) -> u64 {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 += 1;
        let id = inner.0;
        let text = |v: &http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
        let seen = Seen {
            id,
            method: request.method().to_string(),
            path: request.uri().to_string(),
            headers: request
                .headers()
                .iter()
                .map(|(k, v)| (k.to_string(), text(v)))
                .collect(),
            body_bytes: 0,
            outcome: Outcome::Open,
        };
        inner.1.push_back(seen);
        if inner.1.len() > KEPT {
            inner.1.pop_front();
        }
        id
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Seen)) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = inner.1.iter_mut().rev().find(|s| s.id == id) {
            change(seen);
        }
    }
}

/// Held while a request is open; dropped without [`Ticket::done`] it counts as gone.
pub struct Ticket {
    engine: Arc<Engine>,
    id: u64,
    inference: bool,
    outcome: Outcome,
}

impl Ticket {
    /// Notes a request that has arrived.
    pub fn open<B>(engine: &Arc<Engine>, request: &Request<B>) -> Self {
        let inference = request.uri().path().starts_with("/v1/") && request.method() == http::Method::POST;
        engine.counters.load.add(u64::from(inference));
        let id = engine.requests.open(request);
        Self {
            engine: Arc::clone(engine),
            id,
            inference,
            outcome: Outcome::Gone,
        }
    }

    /// More of the body has been read.
    pub fn read(&self, bytes: u64) {
        self.engine.counters.body_bytes.add(bytes);
        self.engine
            .requests
            .change(self.id, |seen| seen.body_bytes += bytes);
    }

    /// Answered in full.
    pub fn done(&mut self) {
        self.outcome = Outcome::Done;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.engine.counters.load.sub(u64::from(self.inference));
        let outcome = self.outcome;
        self.engine
            .requests
            .change(self.id, |seen| seen.outcome = outcome);
    }
}
