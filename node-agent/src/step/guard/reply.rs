//! The guard's own answers, in the shape that OpenAI's clients expect.

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;

/// An answer of the guard.
pub type Reply = Response<Full<Bytes>>;

/// `{"error": {...}}` as OpenAI's API writes it.
pub fn error_json(message: &str, kind: &str, code: &str) -> Bytes {
    let value = serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    Bytes::from(value.to_string())
}

fn reply(status: StatusCode, kind: &str, code: &str, message: &str) -> Reply {
    let mut response = Response::new(Full::new(error_json(message, kind, code)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// 200 with facts about the guard itself.
pub fn json(facts: &impl serde::Serialize) -> Reply {
    let mut response = Response::new(Full::new(serde_json::to_vec(facts).unwrap_or_default().into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// 200 or 503, and not a word: whether it takes requests is no secret.
pub fn health(is_open: bool) -> Reply {
    let mut response = Response::new(Full::default());
    if !is_open {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn closing(mut response: Reply) -> Reply {
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// 401: the key is missing or another.
pub fn unauthorized() -> Reply {
    let message = "this model wants its job's key: send it as \"Authorization: Bearer KEY\"";
    let mut response = reply(
        StatusCode::UNAUTHORIZED,
        "invalid_request_error",
        "invalid_api_key",
        message,
    );
    let headers = response.headers_mut();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    // Whoever sends a large body with a wrong key need not send all of it.
    closing(response)
}

/// 404: not on the list.
pub fn no_path(path: &str) -> Reply {
    let path: String = path.chars().take(128).collect();
    let message = format!("{path} is not served here; /v1/models, /v1/chat/completions and their like are");
    closing(reply(
        StatusCode::NOT_FOUND,
        "invalid_request_error",
        "unknown_path",
        &message,
    ))
}

/// 405: on the list, for the other method.
pub fn no_method(allow: &'static str) -> Reply {
    let message = format!("this path is for {allow}");
    let mut response = reply(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid_request_error",
        "method_not_allowed",
        &message,
    );
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    closing(response)
}

/// 503: not now, or not any more. A proxy may send the request elsewhere: nothing of it was done.
pub fn unavailable(message: &str, code: &str, retry_after: u32) -> Reply {
    let mut response = reply(StatusCode::SERVICE_UNAVAILABLE, "server_error", code, message);
    response.headers_mut().insert(RETRY_AFTER, retry_after.into());
    closing(response)
}

/// 502: the engine had the request and broke off.
pub fn broken(message: &str) -> Reply {
    closing(reply(
        StatusCode::BAD_GATEWAY,
        "server_error",
        "engine_broke_off",
        message,
    ))
}

/// The last event of a stream that the engine broke off.
pub fn broken_event(message: &str) -> Bytes {
    let json = error_json(message, "server_error", "engine_broke_off");
    let mut event = Vec::with_capacity(json.len() + 10);
    // The engine may have been cut off in the middle of a line.
    event.extend_from_slice(b"\n\ndata: ");
    event.extend_from_slice(&json);
    event.extend_from_slice(b"\n\n");
    event.into()
}
