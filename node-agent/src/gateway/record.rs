//! What is noted of each request: an id that client, gateway, guard and log share, a line in the log, and the metrics. Never prompts, answers or keys.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::body::{Frame, SizeHint};

use super::Gateway;
use super::keys::Permit;
use super::replica::Replica;

/// The header that carries the id.
const ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is taken over from a client.
const LONGEST: usize = 128;

/// One request, from its head to the last byte of its answer.
#[derive(Debug)]
pub struct Record {
    id: HeaderValue,
    method: Method,
    path: String,
    begun: Instant,
    noted: Mutex<Noted>,
}

/// What is learnt on the way.
#[derive(Debug, Default)]
struct Noted {
    model: String,
    node: String,
    job: u32,
    tries: u32,
    key: Option<Permit>,
}

impl Record {
    /// The model that is asked for, by the name that it is known by here; a name that nobody knows is the client's text, and not noted.
    pub fn try_replica(&self, replica: &Replica) {
        let mut noted = self.lock();
        noted.tries += 1;
        noted.model.clone_from(&replica.model.name);
        noted.node.clone_from(&replica.model.node);
        noted.job = replica.model.job_id;
    }

    /// Whose key let it in; held until the answer is over.
    pub fn let_in(&self, permit: Permit) {
        self.lock().key = Some(permit);
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes a request and its answer.
pub async fn note(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let id = id(request.headers());
    let record = Arc::new(Record {
        id: id.clone(),
        method: request.method().clone(),
        path: request.uri().path().chars().take(LONGEST).collect(),
        begun: Instant::now(),
        noted: Mutex::default(),
    });
    request.headers_mut().insert(ID, id.clone());
    request.extensions_mut().insert(record.clone());
    gateway.metrics.begun();
    // If the client goes before there is an answer, this is dropped with the rest.
    let mut ending = Ending {
        gateway,
        record,
        status: None,
        first: None,
        bytes: 0,
        whole: false,
    };
    let response = next.run(request).await;
    ending.status = Some(response.status());
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(ID, id);
    Response::from_parts(parts, Body::new(Counted { body, ending }))
}

/// The client's, if it is fit for a log and a header; else ours.
fn id(headers: &HeaderMap) -> HeaderValue {
    let fit = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= LONGEST && bytes.iter().all(u8::is_ascii_graphic)
    };
    let given = headers.get(ID).filter(fit).cloned();
    given.unwrap_or_else(|| {
        let id = format!("{:032x}", rand::random::<u128>());
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
    })
}

/// Written down when it is dropped: the answer is over, or the client has gone.
struct Ending {
    gateway: Arc<Gateway>,
    record: Arc<Record>,
    status: Option<StatusCode>,
    first: Option<Duration>,
    bytes: u64,
    whole: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (record, took) = (&self.record, self.record.begun.elapsed());
        let noted = record.lock();
        // As nginx does: the client has closed the connection before there was an answer.
        let status = self.status.map_or(499, |status| status.as_u16());
        self.gateway
            .metrics
            .ended(&noted.model, status, self.first, took, noted.tries);
        if !self.gateway.settings().access_log {
            return;
        }
        let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        tracing::info!(
            target: "access",
            id = record.id.to_str().unwrap_or_default(),
            key = noted.key.as_ref().map(Permit::name).unwrap_or_default(),
            method = %record.method,
            path = record.path,
            model = noted.model,
            node = noted.node,
            job = noted.job,
            tries = noted.tries,
            status,
            bytes = self.bytes,
            first_ms = self.first.map(ms),
            ms = ms(took),
            whole = self.whole,
        );
    }
}

/// An answer's body, counted.
struct Counted {
    body: Body,
    ending: Ending,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let is_over = self.body.is_end_stream();
        let ending = &mut self.ending;
        match &frame {
            Some(Ok(frame)) => {
                if ending.first.is_none() {
                    ending.first = Some(ending.record.begun.elapsed());
                }
                ending.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Some(Err(_)) => {}
            None => ending.whole = true,
        }
        ending.whole |= is_over;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_not_fit_for_a_log_is_replaced() {
        let with = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(ID, HeaderValue::from_bytes(text).unwrap());
            id(&headers)
        };
        assert_eq!(with(b"job-7/42"), "job-7/42");
        for bad in [b"two words".as_slice(), b"caf\xe9", &[b'x'; 129], b""] {
            assert_eq!(with(bad).len(), 32, "{bad:?}");
        }
        assert_ne!(id(&HeaderMap::new()), id(&HeaderMap::new()));
    }
}
