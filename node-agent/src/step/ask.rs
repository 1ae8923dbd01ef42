//! Our own small questions to the engine, over its Unix socket.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// No answer to a question of ours is longer.
const ANSWER_MAX: usize = 4 * 1024 * 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens (yet, or any more).
    #[error("nobody listens")]
    NotListening,
    /// No answer within the time.
    #[error("no answer")]
    Silent,
    /// Something that is no answer.
    #[error("{0}")]
    Broken(String),
}

/// GETs `path`, or POSTs `body` to it, on a connection of its own.
pub async fn ask(
    socket: &Path,
    path: &str,
    body: Option<&serde_json::Value>,
    within: Duration,
) -> Result<(StatusCode, Bytes), AskError> {
    match tokio::time::timeout(within, exchange(socket, path, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(AskError::Silent),
    }
}

async fn exchange(
    socket: &Path,
    path: &str,
    body: Option<&serde_json::Value>,
) -> Result<(StatusCode, Bytes), AskError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|_| AskError::NotListening)?;
    let broken = |e: hyper::Error| AskError::Broken(e.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let content = body
        .map(|value| Bytes::from(value.to_string()))
        .unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(content))
        .map_err(|e| AskError::Broken(e.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|e| AskError::Broken(e.to_string()))?.to_bytes();
        Ok((head.status, body))
    };
    tokio::pin!(answer);
    // The connection is driven here and dropped with the answer: nothing is left running when a question is given up.
    tokio::select! {
        answer = &mut answer => answer,
        driven = connection => match driven {
            Ok(()) => answer.await,
            Err(e) => Err(broken(e)),
        },
    }
}
