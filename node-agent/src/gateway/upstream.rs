//! The gateway's side of a connection to a guard: what is sent, and the answer as it streams back.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::errors::ApiError;
use super::replica::{Departure, Flight};

/// Connections to guards, kept for the next request.
pub type Upstream = Client<HttpConnector, Sent>;

/// An idle connection is closed by us before a guard would think of closing it under a request.
const IDLE: Duration = Duration::from_secs(10);

/// Idle connections kept to one guard.
const IDLE_PER_GUARD: usize = 64;

/// A node that died without a word is noticed after about `ALIVE + 3 * PROBE`, however long an answer takes.
const ALIVE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);

/// Makes the pool. `connect_timeout` is for one guard's address.
pub fn upstream(connect_timeout: Duration) -> Upstream {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(ALIVE));
    connector.set_keepalive_interval(Some(PROBE));
    connector.set_keepalive_retries(Some(3));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_PER_GUARD)
        .build(connector)
}

/// Headers that belong to one connection, not to the request (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// What the client's request says to the gateway alone. Its key is for us, never for whoever owns the replica.
const OURS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::EXPECT,
    header::CONTENT_LENGTH,
    HeaderName::from_static("x-api-key"),
];

/// Leaves what may be passed on in a request.
pub fn clean_request(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    OURS.iter().for_each(|name| drop(headers.remove(name)));
}

/// Leaves what may be passed on in a response. A replica sets no cookies for the gateway's address.
pub fn clean_response(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(header::SET_COOKIE);
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
}

/// A request's body on its way to a guard. Once hyper has done with it the request has departed.
#[derive(Debug)]
pub struct Sent {
    data: Option<Bytes>,
    _departure: Option<Departure>,
}

impl Sent {
    /// The whole body.
    pub fn new(data: Bytes, departure: Option<Departure>) -> Self {
        Self {
            data: Some(data).filter(|data| !data.is_empty()),
            _departure: departure,
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.data.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// An answer on its way back. Dropping it (the client has gone) closes the connection to the guard, which tells the engine.
pub struct Answer {
    body: Incoming,
    flight: Flight,
    /// Whether events of a stream are what is sent.
    events: bool,
    breaking: Breaking,
}

/// A stream that broke after it began ends with an event that says so, and then not cleanly: no client may take it for whole.
enum Breaking {
    No,
    /// The event was handed out; it must reach the wire before the connection is cut.
    Said(axum::Error),
    Flushed(Option<axum::Error>),
}

impl Answer {
    /// Wraps a guard's answer; `flight` ends with it.
    pub fn new(body: Incoming, flight: Flight, headers: &HeaderMap) -> Self {
        let kind = headers
            .get(header::CONTENT_TYPE)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        Self {
            body,
            flight,
            events: kind.starts_with(b"text/event-stream") && !headers.contains_key(header::CONTENT_LENGTH),
            breaking: Breaking::No,
        }
    }

    fn broken(&self) -> Bytes {
        let model = &self.flight.replica.model;
        let text = format!(
            "the server of {} (job {} on {}) broke off",
            model.name, model.job_id, model.node
        );
        let error = ApiError::unavailable(http::StatusCode::BAD_GATEWAY, "stream_broken", text);
        format!("\n\ndata: {}\n\n", error.to_json()).into()
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match std::mem::replace(&mut self.breaking, Breaking::No) {
            Breaking::No => {}
            Breaking::Said(error) => {
                // hyper writes out what it has when a body makes it wait, and not when the body fails.
                self.breaking = Breaking::Flushed(Some(error));
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Breaking::Flushed(error) => {
                self.breaking = Breaking::Flushed(None);
                return Poll::Ready(error.map(Err));
            }
        }
        match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Err(e)) => {
                let model = &self.flight.replica.model;
                tracing::warn!("{} (job {}): the answer broke off: {e}", model.name, model.job_id);
                let error = axum::Error::new(e);
                if !self.events {
                    return Poll::Ready(Some(Err(error)));
                }
                self.breaking = Breaking::Said(error);
                Poll::Ready(Some(Ok(Frame::data(self.broken()))))
            }
            other => Poll::Ready(other.map(|frame| frame.map_err(axum::Error::new))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.breaking, Breaking::No) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_secrets_and_hops_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer mine"),
            ("x-api-key", "mine"),
            ("cookie", "c"),
            ("connection", "x-hop, Keep-Alive"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("host", "gateway"),
            ("content-type", "application/json"),
            ("x-request-id", "7"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        clean_request(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "x-request-id"]);
    }
}
