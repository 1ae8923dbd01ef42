//! Accepting clients, and letting go of them: routes, limits, the end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{Method, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tonic::codegen::Service;

use super::errors::ApiError;
use super::record::Record;
use super::registry::Now;
use super::{Gateway, models, page, proxy, record};

/// How long a client may take to send a request's head, and an idle connection is kept.
const HEADERS: Duration = Duration::from_secs(60);

/// How long requests in flight may take once the gateway is to end.
const DRAIN: Duration = Duration::from_secs(30);

/// Where metrics are.
const METRICS: &str = "/metrics";

/// Pause after a connection could not be accepted (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// All that is answered.
pub fn routes(gateway: Arc<Gateway>) -> Router {
    let mut guarded = Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route(crate::listing::PATH, get(models::everything));
    for path in proxy::PATHS {
        guarded = guarded.route(path, post(proxy::pass_on));
    }
    let metrics = match gateway.settings().open_metrics {
        true => Router::new().route(METRICS, get(metrics)),
        false => {
            guarded = guarded.route(METRICS, get(metrics));
            Router::new()
        }
    };
    guarded
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(gateway.clone(), admit))
        .layer(middleware::from_fn_with_state(gateway.clone(), record::note))
        .merge(metrics)
        .route("/", get(page::page))
        .route("/health", get(models::health))
        .with_state(gateway)
}

async fn admit(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    match gateway.keys().map(|keys| keys.admit(request.headers())) {
        Some(Err(error)) => return error.into_response(),
        Some(Ok(permit)) => {
            if let Some(record) = request.extensions().get::<Arc<Record>>() {
                record.let_in(permit);
            }
        }
        None => {}
    }
    next.run(request).await
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let text = gateway
        .metrics
        .text(&gateway.registry.read(), &gateway.catalogs.status(), Now::read());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(http::header::CONTENT_TYPE, kind)], text).into_response()
}

async fn no_such_path(uri: Uri) -> ApiError {
    let text = format!(
        "{:?} is not served here; there are /v1/models, /v1/chat/completions, …",
        uri.path()
    );
    ApiError::invalid(StatusCode::NOT_FOUND, "unknown_path", text)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let text = format!("{method} is not what {:?} is asked with", uri.path());
    ApiError::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
}

/// Serves until `stop`, then lets what is in flight finish, for a bounded time.
pub async fn serve(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS);
    server.http2().timer(TokioTimer::new());
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let routes = routes.clone();
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            routes.clone().call(request.map(Body::new))
        });
        let connection = server.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!("a client's connection ended: {e}");
            }
        });
    }
    drop(listener);
    tracing::info!(
        "ending: nothing new is accepted, {} connections finish",
        graceful.count()
    );
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!(
            "requests in flight did not end within {} s; they are cut",
            DRAIN.as_secs()
        );
    }
}
