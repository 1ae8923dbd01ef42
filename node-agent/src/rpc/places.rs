//! How many connections one party may hold: a user on the Unix socket, an address over TCP. Beyond that new ones are closed at once, so that
//! nobody uses up the agent's descriptors and everybody else is still heard.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tonic::transport::server::Connected;

/// More than the tasks of one job on a large node, each waiting for its model.
const EACH: u64 = 512;
/// Descriptors mostly: without a pause the loop that accepts would take a whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who holds how many.
#[derive(Debug)]
pub(super) struct Places<K> {
    each: usize,
    held: Mutex<HashMap<K, Held>>,
}

#[derive(Debug, Default)]
struct Held {
    count: usize,
    /// Told in the log; once, until it holds none any more.
    refused: bool,
}

/// One connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash>(Arc<Places<K>>, K);

impl<K: Copy + Debug + Eq + Hash> Places<K> {
    pub(super) fn new(each: usize) -> Arc<Self> {
        Arc::new(Self {
            each,
            held: Mutex::default(),
        })
    }

    /// A place for `party`; one of no party at all is not counted. None if it has too many.
    pub(super) fn admit(self: &Arc<Self>, party: Option<K>) -> Option<Option<Place<K>>> {
        let Some(party) = party else { return Some(None) };
        let mut held = self.lock();
        let its = held.entry(party).or_default();
        if its.count < self.each {
            its.count += 1;
            return Some(Some(Place(self.clone(), party)));
        }
        if !std::mem::replace(&mut its.refused, true) {
            tracing::warn!(
                ?party,
                "holds {} connections; no more are taken from it",
                its.count
            );
        }
        None
    }
}

impl<K> Places<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        if let Some(its) = held.get_mut(&self.1) {
            its.count -= 1;
            if its.count == 0 {
                held.remove(&self.1);
            }
        }
    }
}

/// A part of what there is: several parties at their limit leave room for others.
fn each() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from((soft / 8).clamp(16, EACH)).unwrap_or(16)
}

/// A connection with its place.
#[derive(Debug)]
pub struct Placed<S, K: Eq + Hash> {
    stream: S,
    /// None of root's on the Unix socket: Slurm's hooks must get through.
    _place: Option<Place<K>>,
}

/// The connections to the Unix socket, by uid.
pub fn of_users(listener: UnixListener) -> impl Stream<Item = io::Result<Placed<UnixStream, u32>>> {
    let places = Places::new(each());
    accepted(async move || {
        let stream = listener.accept().await?.0;
        // A peer of whom the kernel says nothing counts as nobody, all such together.
        let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
        Ok((stream, places.admit(Some(uid).filter(|uid| *uid != 0))))
    })
}

/// The connections to a TCP port, by address.
pub fn of_addresses(listener: TcpListener) -> impl Stream<Item = io::Result<Placed<TcpStream, IpAddr>>> {
    let places = Places::new(each());
    accepted(async move || {
        let (stream, from) = listener.accept().await?;
        // What is said is short, and waited for.
        let _ = stream.set_nodelay(true);
        Ok((stream, places.admit(Some(from.ip().to_canonical()))))
    })
}

/// Those that got a place. One that cannot be accepted is said, and tried again.
fn accepted<S, K, F>(accept: F) -> impl Stream<Item = io::Result<Placed<S, K>>>
where
    K: Eq + Hash,
    F: AsyncFn() -> io::Result<(S, Option<Option<Place<K>>>)>,
{
    futures_util::stream::unfold(accept, async |accept| {
        loop {
            match accept().await {
                Ok((stream, Some(place))) => {
                    let placed = Placed {
                        stream,
                        _place: place,
                    };
                    return Some((Ok(placed), accept));
                }
                Ok((_, None)) => {}
                Err(e) => {
                    tracing::warn!("a connection cannot be accepted: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

impl<S, K: Eq + Hash> Placed<S, K> {
    /// The connection itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Connected, K: Eq + Hash> Connected for Placed<S, K> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin, K: Eq + Hash + Unpin> AsyncRead for Placed<S, K> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin, K: Eq + Hash + Unpin> AsyncWrite for Placed<S, K> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_party_fills_its_own_places_and_nobody_elses() {
        let places = Places::new(2);
        let first = places.admit(Some(7)).expect("room");
        let _second = places.admit(Some(7)).expect("room");
        assert!(places.admit(Some(7)).is_none());
        assert!(places.admit(Some(8)).is_some() && places.admit(None).is_some());
        drop(first);
        assert!(places.admit(Some(7)).is_some());
    }

    #[tokio::test]
    async fn a_connection_gives_its_place_back_when_it_ends() {
        let places = Places::new(1);
        let held = Placed {
            stream: (),
            _place: places.admit(Some(7)).expect("room"),
        };
        assert!(places.admit(Some(7)).is_none());
        drop(held);
        assert!(places.lock().is_empty(), "nobody is remembered who holds nothing");
    }
}
