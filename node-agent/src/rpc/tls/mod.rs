//! The port with TLS: who calls proves himself by a token or by a certificate, and what is said is nobody else's to read.

mod accept;
mod gate;
mod server;
mod subject;
mod tokens;

pub(super) use self::accept::connections;
pub(super) use self::gate::TlsGate;
pub use self::server::expiry;
pub(super) use self::server::server;
