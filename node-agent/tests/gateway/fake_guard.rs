//! A stand-in for a guard: an HTTP server that notes what it is asked and answers as a test tells it to.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{in_time, until};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What the next requests get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// 200 with a small JSON object.
    Answer,
    /// 503 with `Retry-After`, as a guard that drains.
    Drain,
    /// This status, without `Retry-After`.
    Status(u16),
    /// An event stream that the test feeds: [`FakeGuard::stream`].
    Stream,
    /// Nothing, ever.
    Hang,
}

/// The test's end of a stream; dropping it ends the answer, an `Err` breaks it.
pub type Feed = mpsc::Sender<Result<Bytes, std::io::Error>>;

struct Notes {
    mode: Mutex<Mode>,
    seen: Mutex<Vec<Seen>>,
    feeds: mpsc::UnboundedSender<Feed>,
    /// Handlers that run right now.
    hanging: Arc<()>,
}

/// One guard; dropped, its port is closed.
pub struct FakeGuard {
    pub base_url: String,
    notes: Arc<Notes>,
    feeds: mpsc::UnboundedReceiver<Feed>,
    server: JoinHandle<()>,
}

impl Drop for FakeGuard {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeGuard {
    /// Starts one.
    pub async fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (sender, feeds) = mpsc::unbounded_channel();
        let notes = Arc::new(Notes {
            mode: Mutex::new(mode),
            seen: Mutex::default(),
            feeds: sender,
            hanging: Arc::new(()),
        });
        let router = Router::new().fallback(answer).with_state(notes.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            base_url,
            notes,
            feeds,
            server,
        }
    }

    /// Changes what is answered from now on.
    pub fn set(&self, mode: Mode) {
        *self.notes.mode.lock().unwrap() = mode;
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.notes.seen.lock().unwrap().clone()
    }

    /// Waits for the stream of the next request in [`Mode::Stream`].
    pub async fn stream(&mut self) -> Feed {
        in_time("a request for a stream", self.feeds.recv())
            .await
            .unwrap()
    }

    /// Waits until `count` requests hang.
    pub async fn hanging(&self, count: usize) {
        until("requests that hang", async || {
            Arc::strong_count(&self.notes.hanging) == count + 1
        })
        .await;
    }
}

async fn answer(State(notes): State<Arc<Notes>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let seen = Seen {
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
    };
    notes.seen.lock().unwrap().push(seen);
    let mode = *notes.mode.lock().unwrap();
    match mode {
        Mode::Answer => (
            [
                ("content-type", "application/json"),
                ("x-slurm-serve-owner", "somebody else"),
            ],
            r#"{"ok":true}"#,
        )
            .into_response(),
        Mode::Drain => (
            StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", "7"), ("connection", "close")],
            "draining",
        )
            .into_response(),
        Mode::Status(code) => (StatusCode::from_u16(code).unwrap(), "the engine's words").into_response(),
        Mode::Stream => {
            let (feed, events) = mpsc::channel(1);
            notes.feeds.send(feed).unwrap();
            let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(events));
            ([("content-type", "text/event-stream")], body).into_response()
        }
        Mode::Hang => {
            let _hangs = notes.hanging.clone();
            std::future::pending().await
        }
    }
}
