//! `/_stub/…`: what a test sets and reads at run time, on the same socket. Answers also while everything hangs.
//!
//! | call | does |
//! |---|---|
//! | `GET /_stub/state` | phase, the changeable script, running, waiting, body bytes read so far |
//! | `GET /_stub/requests` | the last 64 requests: method, path, headers, body bytes, outcome `open`, `done`, `gone` |
//! | `POST /_stub/set` | a JSON object with some of the keys of `state.live`; unknown keys are refused |
//! | `POST /_stub/exit` | `{"code": 0}` or `{"code": "SIGKILL"}`, and `after_ms` (default 20, so that the answer gets out) |
//! | `POST /_stub/eat` | `{"mib": 100}`: takes that much memory, after the answer, and never gives it back |

use std::time::Duration;

use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::reply::{self, Body};
use crate::script::{Ending, Live};

/// The paths that this file answers.
pub const PREFIX: &str = "/_stub/";

/// Answers one call.
pub fn answer(engine: &Engine, method: &Method, path: &str, body: &[u8]) -> Response<Body> {
    match (method, path.strip_prefix(PREFIX).unwrap_or(path)) {
        (&Method::GET, "state") => reply::json(StatusCode::OK, &state(engine)),
        (&Method::GET, "requests") => reply::json(StatusCode::OK, &json!(engine.requests.list())),
        (&Method::POST, "set") => set(engine, body).unwrap_or_else(|text| refused(&text)),
        (&Method::POST, "exit") => exit(engine, body).unwrap_or_else(|text| refused(&text)),
        (&Method::POST, "eat") => eat(engine, body).unwrap_or_else(|text| refused(&text)),
        _ => reply::detail(StatusCode::NOT_FOUND, "Not Found"),
    }
}

fn refused(text: &str) -> Response<Body> {
    reply::error(StatusCode::BAD_REQUEST, text, None)
}

fn state(engine: &Engine) -> Value {
    let c = &engine.counters;
    json!({
        "pid": std::process::id(),
        "phase": format!("{:?}", engine.now()).to_lowercase(),
        "live": *engine.live.borrow(),
        "running": c.running.get(),
        "waiting": c.waiting.get(),
        "body_bytes": c.body_bytes.get(),
    })
}

fn parsed(body: &[u8]) -> Result<serde_json::Map<String, Value>, String> {
    if body.is_empty() {
        return Ok(serde_json::Map::new());
    }
    serde_json::from_slice(body).map_err(|e| format!("not a JSON object: {e}"))
}

fn set(engine: &Engine, body: &[u8]) -> Result<Response<Body>, String> {
    let mut merged = json!(*engine.live.borrow());
    for (key, value) in parsed(body)? {
        merged[key] = value;
    }
    let live: Live = serde_json::from_value(merged).map_err(|e| e.to_string())?;
    engine.live.send_replace(live);
    Ok(reply::json(StatusCode::OK, &state(engine)))
}

fn exit(engine: &Engine, body: &[u8]) -> Result<Response<Body>, String> {
    let order = parsed(body)?;
    let ending = match order.get("code") {
        None => Ending::Code(0),
        Some(Value::String(name)) => name
            .parse()
            .map_err(|()| format!("no such code or signal: {name}"))?,
        Some(code) => code
            .to_string()
            .parse()
            .map_err(|()| format!("no such code: {code}"))?,
    };
    let after = order.get("after_ms").and_then(Value::as_u64).unwrap_or(20);
    engine.end_after(Duration::from_millis(after), ending);
    Ok(reply::json(StatusCode::ACCEPTED, &state(engine)))
}

fn eat(engine: &Engine, body: &[u8]) -> Result<Response<Body>, String> {
    let mib = parsed(body)?.get("mib").and_then(Value::as_u64).unwrap_or(0);
    let bytes = usize::try_from(mib << 20).map_err(|e| e.to_string())?;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        // Written to, page by page: memory that is only asked for is none.
        std::mem::forget(vec![1_u8; bytes]);
    });
    Ok(reply::json(StatusCode::ACCEPTED, &state(engine)))
}
