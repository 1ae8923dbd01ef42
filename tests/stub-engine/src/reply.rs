//! Answers in the shapes of vLLM and of FastAPI beneath it, and bodies read in bounded memory.

use std::io;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::requests::Ticket;

/// Any answer's body; an error cuts the connection.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bodies up to this size are understood; larger ones are counted, dropped and answered as an empty chat.
pub const PARSED_BYTES: usize = 4 << 20;

/// A request's body.
pub struct Received {
    /// How long it was.
    pub bytes: u64,
    /// What it was, if short enough.
    pub text: Option<Bytes>,
}

/// Reads a body to its end, keeping at most [`PARSED_BYTES`].
pub async fn receive(engine: &Engine, ticket: &Ticket, mut body: Incoming) -> Result<Received, hyper::Error> {
    let (mut bytes, mut kept) = (0, Some(BytesMut::new()));
    loop {
        engine.body_gate().await;
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame?.into_data() else { continue };
        bytes += data.len() as u64;
        ticket.read(data.len() as u64);
        kept = kept.filter(|k| k.len() + data.len() <= PARSED_BYTES);
        if let Some(kept) = &mut kept {
            kept.extend_from_slice(&data);
        }
    }
    Ok(Received {
        bytes,
        text: kept.map(BytesMut::freeze),
    })
}

/// A whole answer.
pub fn full(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(
        Full::new(text.into())
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON answer.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    full(status, "application/json", value.to_string())
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = full(status, "text/plain", Bytes::new());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

/// FastAPI's own errors.
pub fn detail(status: StatusCode, text: &str) -> Response<Body> {
    json(status, &json!({ "detail": text }))
}

/// vLLM's error object, also sent inside a stream.
pub fn error_object(status: StatusCode, message: &str, param: Option<&str>) -> Value {
    let kind = match status {
        StatusCode::BAD_REQUEST => "BadRequestError",
        StatusCode::NOT_FOUND => "NotFoundError",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
        StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
        _ => "InternalServerError",
    };
    json!({ "error": { "message": message, "type": kind, "param": param, "code": status.as_u16() } })
}

/// An answer with vLLM's error object.
pub fn error(status: StatusCode, message: &str, param: Option<&str>) -> Response<Body> {
    json(status, &error_object(status, message, param))
}

/// The sentence with which vLLM reports a dead engine.
pub const ENGINE_DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
