//! The socket, as vLLM has it: bound before anything is loaded, so that a taken address fails at once, and listening
//! only when ready, so that a connection before is refused. The file of a Unix socket stays at the end.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};

use hyper_util::rt::TokioIo;
use nix::sys::socket::sockopt::ReuseAddr;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, bind, listen,
    setsockopt, socket,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::args::Options;

/// uvicorn's backlog.
const BACKLOG: i32 = 2048;

/// Bound, not yet listening.
pub struct Bound {
    fd: OwnedFd,
    unix: bool,
    /// As the log names it.
    pub address: String,
}

/// Listening.
pub enum Listener {
    /// `--uds`.
    Unix(UnixListener),
    /// `--host` and `--port`.
    Tcp(TcpListener),
}

/// Both kinds of connection behind one type.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Bound {
    /// Binds what the command line names. A socket file that is already there counts as taken, as in vLLM.
    pub fn new(options: &Options) -> io::Result<Self> {
        if let Some(path) = &options.uds {
            let fd = stream_socket(AddressFamily::Unix)?;
            bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
            return Ok(Self {
                fd,
                unix: true,
                address: format!("unix socket {}", path.display()),
            });
        }
        let host = options.host.as_deref().unwrap_or("0.0.0.0");
        let address = (host, options.port).to_socket_addrs()?.next();
        let address: SocketAddr =
            address.ok_or_else(|| io::Error::other(format!("{host} has no address; give --host an IP")))?;
        let family = if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let fd = stream_socket(family)?;
        setsockopt(&fd, ReuseAddr, &true)?;
        let storage = SockaddrStorage::from(address);
        bind(fd.as_raw_fd(), &storage as &dyn SockaddrLike)?;
        Ok(Self {
            fd,
            unix: false,
            address: format!("http://{address}"),
        })
    }

    /// Lets connections in.
    pub fn listen(self) -> io::Result<Listener> {
        listen(&self.fd, Backlog::new(BACKLOG)?)?;
        Ok(if self.unix {
            Listener::Unix(UnixListener::from_std(self.fd.into())?)
        } else {
            Listener::Tcp(TcpListener::from_std(self.fd.into())?)
        })
    }
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket(
        family,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?)
}

impl Listener {
    /// The next connection, and the peer as an access log shows it (empty for a Unix socket).
    pub async fn accept(&self) -> io::Result<(TokioIo<Box<dyn Stream>>, String)> {
        let (stream, peer): (Box<dyn Stream>, _) = match self {
            Self::Unix(listener) => (Box::new(listener.accept().await?.0), String::new()),
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                (Box::new(stream), peer.to_string())
            }
        };
        Ok((TokioIo::new(stream), peer))
    }
}
