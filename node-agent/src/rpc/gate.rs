//! The layer in front of every service on TCP: no call without a proof of who calls. What counts as one is the port's own matter ([`Gate`]).
//!
//! Health and reflection answer everybody: they tell that we live, and the contract that stands in `proto/`.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderValue};
use hyper::body::{Frame, SizeHint};
use slurm_serve_proto::PROOF_METADATA;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use super::caller::Caller;
use super::refusals::Refusals;

const OPEN: [&str; 2] = ["/grpc.health.v1.Health/", "/grpc.reflection."];

/// How soon whoever may not listen any more hears nothing more.
const CHECK: Duration = Duration::from_secs(1);

/// What a port takes for a proof.
pub trait Gate: Send + Sync + 'static {
    /// Who calls `path`. Credentials are taken out of `headers`.
    fn admit(
        &self,
        path: &str,
        headers: &mut HeaderMap,
        connection: &Extensions,
    ) -> impl Future<Output = Result<Admitted, Status>> + Send;

    /// From where.
    fn address(connection: &Extensions) -> Option<IpAddr>;
}

/// Somebody who may call.
pub struct Admitted {
    pub caller: Caller,
    /// What proves to him who we are.
    pub proof: Option<HeaderValue>,
    /// Whether his own proof still counts; asked again and again while he listens.
    pub counts: Option<Box<dyn Fn() -> bool + Send>>,
}

/// Makes the layer.
#[derive(Debug)]
pub struct GateLayer<G>(Arc<(G, Arc<Refusals>)>);

impl<G> GateLayer<G> {
    /// In front of everything.
    pub fn new(gate: G, refusals: Arc<Refusals>) -> Self {
        Self(Arc::new((gate, refusals)))
    }
}

impl<G> Clone for GateLayer<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G, S> tower_layer::Layer<S> for GateLayer<G> {
    type Service = Gated<G, S>;

    fn layer(&self, inner: S) -> Gated<G, S> {
        Gated {
            gate: self.0.clone(),
            inner,
        }
    }
}

/// The layer at work.
#[derive(Debug)]
pub struct Gated<G, S> {
    gate: Arc<(G, Arc<Refusals>)>,
    inner: S,
}

impl<G, S: Clone> Clone for Gated<G, S> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<G: Gate, S> Service<http::Request<Body>> for Gated<G, S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The service that was polled ready is the one that must be called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let gate = self.gate.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if OPEN.iter().any(|open| path.starts_with(open)) {
                return inner.call(request).await;
            }
            let (gate, refusals) = &*gate;
            let mut headers = std::mem::take(request.headers_mut());
            let admitted = gate.admit(&path, &mut headers, request.extensions()).await;
            *request.headers_mut() = headers;
            let Admitted {
                caller,
                proof,
                counts,
            } = match admitted {
                Ok(admitted) => admitted,
                Err(status) => {
                    let from = G::address(request.extensions());
                    return Ok(refusals.refuse(from, status).await.into_http());
                }
            };
            request.extensions_mut().insert(caller);
            let mut response = inner.call(request).await?;
            if let Some(proof) = proof {
                response.headers_mut().insert(PROOF_METADATA, proof);
            }
            Ok(match counts {
                Some(counts) => response.map(|body| WhileItCounts::new(body, counts).into()),
                None => response,
            })
        })
    }
}

/// An answer that ends when its reader's proof does.
struct WhileItCounts {
    body: Body,
    counts: Box<dyn Fn() -> bool + Send>,
    clock: tokio::time::Interval,
    over: bool,
}

impl WhileItCounts {
    fn new(body: Body, counts: Box<dyn Fn() -> bool + Send>) -> Self {
        let mut clock = tokio::time::interval_at(tokio::time::Instant::now() + CHECK, CHECK);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            body,
            counts,
            clock,
            over: false,
        }
    }
}

impl From<WhileItCounts> for Body {
    fn from(body: WhileItCounts) -> Self {
        Body::new(body)
    }
}

impl hyper::body::Body for WhileItCounts {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        while self.clock.poll_tick(cx).is_ready() {
            if !(self.counts)() {
                self.over = true;
                // What comes after an answer has begun stands behind it.
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from(i32::from(Code::Unauthenticated)));
                let why = HeaderValue::from_static("what let you in does not count any more");
                trailers.insert("grpc-message", why);
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
