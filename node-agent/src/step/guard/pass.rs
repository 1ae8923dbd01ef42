//! One request: checked, passed on, its answer streamed back.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;

use super::allow::{self, Verdict};
use super::body::Passed;
use super::reply::{self, Reply};
use super::{Door, Shared, headers};
use crate::guard_status::{self, GuardStatus};

/// The engine's answer, or the guard's own.
pub type Answer = Response<Either<Passed, Full<Bytes>>>;

/// Answers `request`, and sets `proven` if it carries the key. Whatever goes wrong becomes an answer too.
pub async fn answer(
    shared: Arc<Shared>,
    from: IpAddr,
    proven: &AtomicBool,
    request: Request<Incoming>,
) -> Answer {
    match pass(&shared, from, proven, request).await {
        Ok(response) => response.map(Either::Left),
        Err(reply) => reply.map(Either::Right),
    }
}

async fn pass(
    shared: &Shared,
    from: IpAddr,
    proven: &AtomicBool,
    mut request: Request<Incoming>,
) -> Result<Response<Passed>, Reply> {
    let is_peer = shared.peers.iter().any(|peers| peers.contains(from));
    if !is_peer && !shared.key.admits(request.headers()) {
        return Err(match (request.method(), request.uri().path()) {
            // Routers ask before they have a key to send, and stop asking one that says 401.
            (&Method::GET, "/health") => reply::health(refusal(shared).is_none()),
            _ => reply::unauthorized(),
        });
    }
    proven.store(true, Ordering::Relaxed);
    if request.uri().path() == guard_status::PATH {
        return Err(status(shared, request.method()));
    }
    match allow::verdict(request.method(), request.uri().path(), is_peer) {
        Verdict::Pass => {}
        Verdict::NoPath => return Err(reply::no_path(request.uri().path())),
        Verdict::NoMethod(allow) => return Err(reply::no_method(allow)),
    }
    // Counted first, then checked: whoever closes the door and then waits for nothing in flight misses nobody.
    let ticket = shared.counts.admit();
    if let Some(reply) = refusal(shared) {
        return Err(reply);
    }

    headers::strip_request(request.headers_mut());
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = engine_uri(request.uri());
    let response = shared.upstream.send(request).await.map_err(|error| {
        let model = &shared.model;
        if error.is_connect() {
            reply::unavailable(&format!("the engine of {model} is gone"), "engine_gone", 5)
        } else {
            reply::broken(&format!("the engine of {model} broke off"))
        }
    })?;

    ticket.piece();
    let (mut head, body) = response.into_parts();
    let body = Passed::new(body, &head.headers, ticket, &shared.model);
    headers::strip(&mut head.headers);
    if shared.door() != Door::Open {
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(Response::from_parts(head, body))
}

/// What there is to say of ourselves, at any time, for those who route to us and cannot ask our agent.
fn status(shared: &Shared, method: &Method) -> Reply {
    if *method != Method::GET {
        return reply::no_method("GET");
    }
    reply::json(&GuardStatus {
        model: shared.model.clone(),
        generation: lock(&shared.generation).clone(),
        state: shared.door().word().to_owned(),
        in_flight: shared.counts.in_flight(),
    })
}

/// What the door says, unless it is open.
fn refusal(shared: &Shared) -> Option<Reply> {
    let model = &shared.model;
    Some(match shared.door() {
        Door::Open => return None,
        Door::Loading => reply::unavailable(&format!("{model} is loading"), "model_loading", 5),
        Door::Unresponsive => {
            reply::unavailable(&format!("{model} is not answering"), "model_not_answering", 5)
        }
        Door::Restarting => {
            let why = lock(&shared.why);
            reply::unavailable(
                &format!("{model} is being started again: {why}"),
                "model_loading",
                5,
            )
        }
        Door::Draining => reply::unavailable(&format!("{model} is ending here"), "model_ending", 1),
        Door::Ended => {
            let why = lock(&shared.why);
            reply::unavailable(&format!("{model} has ended here: {why}"), "model_ended", 5)
        }
    })
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same path and query, on the engine. The host stands for the socket.
fn engine_uri(uri: &Uri) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("localhost"));
    parts.path_and_query = Some(
        uri.path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/")),
    );
    Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("http://localhost/"))
}
