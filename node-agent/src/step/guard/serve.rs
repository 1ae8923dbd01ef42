//! Accepting connections, a bounded number of them, until told to stop.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use nix::sys::resource::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::upstream::BUFFER;
use super::{Shared, pass};

/// How long a connection may be silent between requests. Longer than the usual clients keep theirs (reqwest: 90 s), so that it is the
/// client who closes and no request meets a closing connection.
const SILENCE: Duration = Duration::from_secs(120);

/// How long a connection may go without having shown the key: strangers must not hold all places.
const UNPROVEN: Duration = Duration::from_secs(8);

/// At most so many connections at once; the next ones wait in the kernel's queue.
const CONNECTIONS: u64 = 4096;

/// Serves `listener` until `stop`, then closes it and waits for what is being written.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, places: usize, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(places));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, from, place)) = accepted else {
            continue;
        };
        let (shared, proven) = (shared.clone(), Arc::new(AtomicBool::new(false)));
        let proof = proven.clone();
        let service = service_fn(move |request| {
            let (shared, proof) = (shared.clone(), proof.clone());
            async move { Ok::<_, Infallible>(pass::answer(shared, from, &proof, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::pin!(watched);
            let early = tokio::time::timeout(UNPROVEN, &mut watched).await;
            let ended = match early {
                Ok(ended) => ended,
                Err(_) if proven.load(Ordering::Relaxed) => watched.await,
                Err(_) => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a client's connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, IpAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, from)) => {
            // Tokens are small: none waits for an acknowledgement of the one before.
            let _ = stream.set_nodelay(true);
            Some((stream, from.ip(), place))
        }
        Err(error) => {
            // Mostly descriptors running out: others end meanwhile. The connection stays in the kernel's queue.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}

/// A request takes two descriptors, one on each side; some are left for everything else.
pub fn places() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    (soft.saturating_sub(64) / 2).clamp(16, CONNECTIONS) as usize
}
