//! Connections to the engine: HTTP/1.1 over its Unix socket, kept for the next request.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tonic::codegen::Service;

/// uvicorn closes an idle connection after 5 s: ours is thrown away well before, so that no request meets one being closed.
const KEPT_IDLE: Duration = Duration::from_secs(2);

/// No more than this is buffered on a connection, each way.
pub const BUFFER: usize = 64 * 1024;

/// A pool of connections to one engine. Dropping a response, or its future, closes its connection: that is how an engine learns
/// that the client has left.
pub struct Upstream(Client<UnixConnector, Incoming>);

impl Upstream {
    /// The engine that listens, now or later, on `socket`.
    pub fn new(socket: &Path) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEPT_IDLE)
            .http1_max_buf_size(BUFFER)
            .build(UnixConnector::new(socket));
        Self(client)
    }

    /// Sends `request`, whose URI must be absolute; its host is not looked at.
    pub fn send(&self, request: http::Request<Incoming>) -> ResponseFuture {
        self.0.request(request)
    }
}

/// Connects to one Unix socket, whatever the URI says.
#[derive(Clone)]
pub struct UnixConnector(Arc<Path>);

impl UnixConnector {
    /// To `socket`.
    pub fn new(socket: &Path) -> Self {
        Self(socket.into())
    }
}

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<UnixStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = PathBuf::from(&*self.0);
        Box::pin(async move { Ok(TokioIo::new(UnixStream::connect(socket).await?)) })
    }
}
