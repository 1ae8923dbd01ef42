//! The handshakes: many at a time, few of one address, none for ever.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::subject::Subject;
use crate::private_file::Followed;
use crate::rpc::places::{Place, Placed, Places, of_addresses};
use crate::rpc::refusals::Refusals;

/// A handshake is two round trips.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes under way, of all and of one address; what comes beyond that waits, or is closed.
const AT_ONCE: usize = 1024;
const OF_ONE: usize = 64;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: Option<SocketAddr>,
    /// What its certificate says, if it has shown one.
    pub subject: Option<Arc<Subject>>,
}

/// A connection whose handshake is done.
pub struct Secured {
    stream: TlsStream<Placed<TcpStream, IpAddr>>,
    peer: Peer,
}

/// The connections to the TLS port. One that comes to nothing is told in the log, like any other failed proof, and is gone.
pub fn connections(
    listener: TcpListener,
    tls: Arc<Followed<ServerConfig>>,
    refusals: Arc<Refusals>,
) -> impl Stream<Item = io::Result<Secured>> {
    let begun = Places::new(OF_ONE);
    let handshakes = of_addresses(listener).filter_map(move |placed| {
        let begun = begun.clone();
        std::future::ready(placed.ok().and_then(|placed| {
            let from = placed.stream().peer_addr().ok();
            let place = begun.admit(from.map(|from| from.ip().to_canonical()))?;
            Some((placed, from, place))
        }))
    });
    let done = handshakes
        .map(move |(placed, from, place)| {
            let acceptor = TlsAcceptor::from(tls.now());
            let refusals = refusals.clone();
            async move {
                match handshake(acceptor, placed, from, place).await {
                    Ok(secured) => Some(Ok(secured)),
                    Err(why) => {
                        if let Some(why) = why {
                            refusals.tell(from.map(|from| from.ip()), &why);
                        }
                        None
                    }
                }
            }
        })
        .buffer_unordered(AT_ONCE);
    done.filter_map(std::future::ready)
}

/// The error is for the log; none if nothing is worth a line.
async fn handshake(
    acceptor: TlsAcceptor,
    placed: Placed<TcpStream, IpAddr>,
    address: Option<SocketAddr>,
    _place: Option<Place<IpAddr>>,
) -> Result<Secured, Option<String>> {
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(placed))
        .await
        .map_err(|_| format!("no TLS handshake within {} s", HANDSHAKE.as_secs()))?
        .map_err(|e| match e.kind() {
            // Whoever only looks whether the port is open, as load balancers do every few seconds.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => None,
            _ => Some(format!("no TLS handshake: {e}")),
        })?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let subject = shown
        .map(|der| Subject::of(der).map(Arc::new))
        .transpose()
        .map_err(|why| format!("a client's certificate cannot be read: {why}"))?;
    Ok(Secured {
        stream,
        peer: Peer { address, subject },
    })
}

impl Connected for Secured {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
