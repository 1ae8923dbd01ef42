//! From a request to the thing that answers it.

use std::io;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use crate::ask::{Ask, Kind};
use crate::control;
use crate::engine::{Engine, Phase};
use crate::log;
use crate::reply::{self, Body, ENGINE_DEAD, Received};
use crate::requests::Ticket;
use crate::script::Hang;
use crate::{generate, metrics, pooling};

/// Says how many body bytes arrived, on every answer to a POST.
const BODY_BYTES: &str = "x-stub-body-bytes";

/// Every path of vLLM's that the stub has, with its method.
const PATHS: &[(&str, &str)] = &[
    ("GET", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/version"),
    ("GET", "/load"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/rerank"),
    ("POST", "/tokenize"),
    ("POST", "/invocations"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
];

/// Answers one request. An error cuts the connection, as does the client's going.
pub async fn handle(
    engine: Arc<Engine>,
    peer: Arc<str>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let path = request.uri().path().to_owned();
    if path.starts_with(control::PREFIX) {
        return command(&engine, request).await;
    }
    let ticket = Ticket::open(&engine, &request);
    let line = format!("{peer} - \"{} {} HTTP/1.1\"", request.method(), request.uri());
    engine.http_gate().await;
    let response = dispatch(&engine, ticket, request).await?;
    if engine.options.access_log && !engine.options.unlogged.contains(&path) {
        log::uvicorn(format_args!("{line} {}", response.status()));
    }
    Ok(response)
}

async fn command(engine: &Arc<Engine>, request: Request<Incoming>) -> Result<Response<Body>, io::Error> {
    use http_body_util::{BodyExt, Limited};
    let (head, body) = request.into_parts();
    let body = Limited::new(body, reply::PARSED_BYTES)
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    Ok(control::answer(engine, &head.method, head.uri.path(), &body))
}

async fn dispatch(
    engine: &Arc<Engine>,
    mut ticket: Ticket,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let refusal = refused(engine, &head.method, path, &head.headers);
    if head.method != Method::POST {
        ticket.done();
        return Ok(refusal.unwrap_or_else(|| look(engine, path)));
    }
    if let Some(refusal) = refusal {
        ticket.done();
        return Ok(refusal);
    }
    let received = reply::receive(engine, &ticket, body)
        .await
        .map_err(io::Error::other)?;
    let bytes = received.bytes;
    let mut response = post(engine, ticket, path, received).await;
    response
        .headers_mut()
        .insert(BODY_BYTES, HeaderValue::from(bytes));
    Ok(response)
}

/// Why a request gets no further: unknown path, wrong method, no key.
fn refused(engine: &Engine, method: &Method, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    if ["/v1", "/v2", "/inference"].iter().any(|p| path.starts_with(p)) && !has_key(engine, headers) {
        return Some(reply::json(
            StatusCode::UNAUTHORIZED,
            &json!({ "error": "Unauthorized" }),
        ));
    }
    if !PATHS.iter().any(|(_, p)| *p == path) {
        return Some(reply::detail(StatusCode::NOT_FOUND, "Not Found"));
    }
    if !PATHS.contains(&(method.as_str(), path)) {
        return Some(reply::detail(
            StatusCode::METHOD_NOT_ALLOWED,
            "Method Not Allowed",
        ));
    }
    None
}

fn has_key(engine: &Engine, headers: &HeaderMap) -> bool {
    let keys = &engine.options.api_keys;
    let given = headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.strip_prefix("Bearer "));
    keys.is_empty() || given.is_some_and(|given| keys.iter().any(|key| key == given))
}

/// Everything that is asked by GET.
fn look(engine: &Engine, path: &str) -> Response<Body> {
    match path {
        "/version" => reply::json(StatusCode::OK, &json!({ "version": crate::VERSION })),
        "/load" => {
            let load = if engine.options.load_tracking {
                engine.counters.load.get()
            } else {
                0
            };
            reply::json(StatusCode::OK, &json!({ "server_load": load }))
        }
        "/metrics" => reply::full(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            metrics::render(engine),
        ),
        "/v1/models" => reply::json(StatusCode::OK, &models(engine)),
        "/is_paused" => {
            let paused = engine.live.borrow().hang == Hang::Engine;
            reply::json(StatusCode::OK, &json!({ "is_paused": paused }))
        }
        _ => health(engine),
    }
}

fn health(engine: &Engine) -> Response<Body> {
    let scripted = engine
        .live
        .borrow()
        .health
        .and_then(|code| StatusCode::from_u16(code).ok());
    let status = match engine.now() {
        Phase::Dead => StatusCode::SERVICE_UNAVAILABLE,
        _ => scripted.unwrap_or(StatusCode::OK),
    };
    reply::empty(status)
}

fn models(engine: &Engine) -> serde_json::Value {
    let card = |id| {
        json!({ "id": id, "object": "model", "created": engine.created, "owned_by": "vllm",
                "root": engine.options.model, "parent": null, "max_model_len": engine.options.max_model_len })
    };
    json!({ "object": "list", "data": engine.ids().into_iter().map(card).collect::<Vec<_>>() })
}

/// Everything that is asked by POST, its body read.
async fn post(engine: &Arc<Engine>, mut ticket: Ticket, path: &str, received: Received) -> Response<Body> {
    let whole = match path {
        "/ping" => health(engine),
        "/pause" => pause(engine, Hang::Engine, "paused"),
        "/resume" => pause(engine, Hang::None, "resumed"),
        _ => match (scripted(engine), path) {
            (Some(refusal), _) => refusal,
            (None, "/v1/chat/completions" | "/v1/completions" | "/invocations") => {
                let kind = if path == "/v1/completions" {
                    Kind::Completion
                } else {
                    Kind::Chat
                };
                let ask = match &received.text {
                    Some(text) => Ask::read(kind, engine, text),
                    None => Ok(Ask::unread(kind, engine)),
                };
                match ask {
                    Ok(ask) => return generate::answer(Arc::clone(engine), ticket, ask).await,
                    Err(refusal) => *refusal,
                }
            }
            (None, _) => {
                let text = received.text.unwrap_or_default();
                let answer = match path {
                    "/v1/embeddings" => pooling::embeddings(engine, &text),
                    "/tokenize" => pooling::tokenize(engine, &text),
                    _ => pooling::rerank(engine, &text),
                };
                answer.unwrap_or_else(|refusal| *refusal)
            }
        },
    };
    ticket.done();
    whole
}

/// The refusal that the script or a dead engine has for every inference request.
fn scripted(engine: &Engine) -> Option<Response<Body>> {
    if engine.now() == Phase::Dead {
        return Some(reply::error(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None));
    }
    let status = StatusCode::from_u16(engine.live.borrow().request_status?).ok()?;
    Some(reply::error(status, "Refused by the stub's script.", None))
}

/// A paused engine makes no tokens until it is resumed.
fn pause(engine: &Engine, hang: Hang, word: &str) -> Response<Body> {
    engine.live.send_modify(|live| live.hang = hang);
    reply::json(StatusCode::OK, &json!({ "status": word }))
}
