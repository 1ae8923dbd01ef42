//! Passing a request on: find its model, choose a replica, try another where nothing can have been done yet, stream back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use hyper::body::Incoming;

use super::Gateway;
use super::errors::ApiError;
use super::model_name;
use super::record::Record;
use super::registry::Now;
use super::replica::Flight;
use super::router::{self, Refusal};
use super::upstream::{Answer, Sent, clean_request, clean_response};

/// What is passed on, all by POST: the work that a guard lets through to its engine, each named by a `model` in the body.
pub use crate::step::guard::WORK as PATHS;

/// Replicas tried for one request.
const TRIES: usize = 3;

/// Who answered: who owns that replica can read the prompts sent to it.
const OWNER: HeaderName = HeaderName::from_static("x-slurm-serve-owner");
const NODE: HeaderName = HeaderName::from_static("x-slurm-serve-node");
const JOB: HeaderName = HeaderName::from_static("x-slurm-serve-job");

/// Handler of all [`PATHS`].
pub async fn pass_on(
    State(gateway): State<Arc<Gateway>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Response {
    try_pass_on(&gateway, &record, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn try_pass_on(gateway: &Gateway, record: &Record, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let announced = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let held = gateway.bodies.hold(body, announced).await?;
    let model = model_name::find(&parts.headers, &held.bytes)?.into_owned();
    clean_request(&mut parts.headers);
    let (mut tried, mut last) = (Vec::new(), None);
    while tried.len() < TRIES {
        let chosen = router::pick(&gateway.registry.read(), &model, &tried, Now::read());
        let mut flight = match chosen {
            Ok(flight) => flight,
            Err(refusal) => return Err(last.unwrap_or_else(|| ApiError::refused(&model, refusal))),
        };
        record.try_replica(&flight.replica);
        let request = address(&parts, &mut flight, held.bytes.clone())?;
        let failure = match gateway.upstream.request(request).await {
            Ok(answer) if is_refusal(&answer) => {
                let seconds = answer.headers().get(RETRY_AFTER);
                let seconds = seconds.and_then(|v| v.to_str().ok()?.parse().ok());
                refused(&model, &flight).retry_in(seconds.unwrap_or(1))
            }
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                return Err(no_entry(&model, &flight));
            }
            Ok(answer) => {
                flight.replica.load.answered();
                return Ok(stream_back(answer, flight));
            }
            Err(e) if e.is_connect() => {
                failed(gateway, &flight);
                unreachable(&model, &flight, &e)
            }
            // The request may have been worked on: to send it again is not ours to decide.
            Err(e) => {
                failed(gateway, &flight);
                return Err(broke_off(&model, &flight, &e));
            }
        };
        tracing::debug!("{}; trying another replica", failure.message);
        tried.push(flight.replica.model.generation.clone());
        last = Some(failure);
    }
    Err(last.unwrap_or_else(|| ApiError::refused(&model, Refusal::Exhausted)))
}

fn failed(gateway: &Gateway, flight: &Flight) {
    flight.replica.load.failed(Now::read().unix_ms);
    gateway.metrics.failed();
}

/// The client's request, addressed to the replica chosen for it.
fn address(parts: &Parts, flight: &mut Flight, bytes: bytes::Bytes) -> Result<http::Request<Sent>, ApiError> {
    let replica = flight.replica.clone();
    let (Some(guard), Some(bearer)) = (&replica.guard, &replica.bearer) else {
        return Err(ApiError::refused(&replica.model.name, Refusal::Exhausted));
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri = Uri::builder()
        .scheme("http")
        .authority(guard.clone())
        .path_and_query(path);
    let uri = uri.build().map_err(|e| {
        ApiError::invalid(
            StatusCode::BAD_REQUEST,
            "invalid_path",
            format!("{path:?} is no path: {e}"),
        )
    })?;
    let mut request = http::Request::new(Sent::new(bytes, flight.departure()));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = parts.headers.clone();
    request.headers_mut().insert(AUTHORIZATION, bearer.clone());
    Ok(request)
}

/// A guard that has not let the request through to its engine says 503 with `Retry-After` (while draining, or not ready), as
/// does an agent that keeps the port of a runner that is gone. Only then is it safe to ask another.
fn is_refusal(answer: &http::Response<Incoming>) -> bool {
    answer.status() == StatusCode::SERVICE_UNAVAILABLE && answer.headers().contains_key(RETRY_AFTER)
}

fn stream_back(answer: http::Response<Incoming>, flight: Flight) -> Response {
    let (mut parts, body) = answer.into_parts();
    clean_response(&mut parts.headers);
    let model = &flight.replica.model;
    // Slurm's names are plain text; should one not be, the header is left out rather than the answer.
    let text = |text: &str| HeaderValue::from_str(text).ok();
    for (name, value) in [
        (OWNER, text(&model.owner)),
        (NODE, text(&model.node)),
        (JOB, Some(model.job_id.into())),
    ] {
        parts.headers.remove(&name);
        if let Some(value) = value {
            parts.headers.insert(name, value);
        }
    }
    let answer = Answer::new(body, flight, &parts.headers);
    Response::from_parts(parts, Body::new(answer))
}

fn place(flight: &Flight) -> String {
    let model = &flight.replica.model;
    format!("job {} on {}", model.job_id, model.node)
}

fn refused(model: &str, flight: &Flight) -> ApiError {
    let text = format!("{model} takes no new requests just now ({})", place(flight));
    ApiError::unavailable(StatusCode::SERVICE_UNAVAILABLE, "model_ending", text).about("model")
}

/// The guard's 401 must not reach the client, who would look for a fault in his own key.
fn no_entry(model: &str, flight: &Flight) -> ApiError {
    let text = format!("{model} refused the gateway's key ({})", place(flight));
    tracing::error!("{text}");
    ApiError::unavailable(StatusCode::BAD_GATEWAY, "model_unusable", text).about("model")
}

fn unreachable(model: &str, flight: &Flight, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{model} cannot be reached ({}): {}", place(flight), cause(error));
    tracing::warn!("{text}");
    ApiError::unavailable(StatusCode::BAD_GATEWAY, "model_unreachable", text).about("model")
}

fn broke_off(model: &str, flight: &Flight, error: &dyn std::error::Error) -> ApiError {
    let text = format!(
        "{model} broke off before it answered ({}): {}",
        place(flight),
        cause(error)
    );
    tracing::warn!("{text}");
    ApiError::unavailable(StatusCode::BAD_GATEWAY, "model_unreachable", text).about("model")
}

/// hyper says "client error (Connect)" and hides the cause in the chain of sources.
fn cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
