//! Who calls by a token or by a certificate.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::{Extensions, HeaderMap};
use slurm_serve_proto::MUNGE_METADATA;
use tonic::Status;

use super::accept::Peer;
use super::subject::Subject;
use super::tokens::{Tokens, hash};
use crate::config::Access;
use crate::private_file::Followed;
use crate::rpc::caller::{Caller, Roles, Via};
use crate::rpc::gate::{Admitted, Gate};

/// The proofs of the port with TLS.
#[derive(Debug)]
pub struct TlsGate {
    access: Access,
    tokens: Arc<Followed<Tokens>>,
}

impl TlsGate {
    /// Reads the tokens for the first time.
    pub fn new(access: &Access) -> Result<Self, String> {
        let path = access.token_file.clone();
        let named = [path.as_path()];
        let files = if path.as_os_str().is_empty() {
            &[][..]
        } else {
            &named[..]
        };
        let read = path.clone();
        Ok(Self {
            access: access.clone(),
            tokens: Arc::new(Followed::new(files, move || Tokens::read(&read))?),
        })
    }

    fn by_token(&self, path: &str, token: &[u8]) -> Result<Admitted, Status> {
        let hash = hash(token);
        let tokens = self.tokens.now();
        let found = tokens.find(&hash).ok_or_else(|| {
            Status::unauthenticated("this token is not one of this agent's (access.token_file)")
        })?;
        tracing::debug!(path, token = found.name, "called");
        let followed = self.tokens.clone();
        let roles = found.roles;
        let counts = move || {
            followed
                .now()
                .find(&hash)
                .is_some_and(|token| token.roles == roles)
        };
        Ok(admitted(roles, counts))
    }

    fn by_certificate(&self, path: &str, subject: &Arc<Subject>) -> Result<Admitted, Status> {
        tracing::debug!(path, certificate = subject.shown(), "called");
        let roles = Roles::by(&self.access, |who| subject.is_one_of(&who.certificates));
        let subject = subject.clone();
        let counts = move || {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            now < subject.expires
        };
        match counts() {
            true => Ok(admitted(roles, counts)),
            false => Err(Status::unauthenticated(
                "your certificate has expired since you connected",
            )),
        }
    }
}

/// Nobody of the cluster: he owns no job, and gets keys as they are because nobody else reads this connection.
fn admitted(roles: Roles, counts: impl Fn() -> bool + Send + 'static) -> Admitted {
    let caller = Caller {
        uid: None,
        pid: None,
        roles,
        via: Via::Tls,
    };
    Admitted {
        caller,
        proof: None,
        counts: Some(Box::new(counts)),
    }
}

impl Gate for TlsGate {
    async fn admit(
        &self,
        path: &str,
        headers: &mut HeaderMap,
        connection: &Extensions,
    ) -> Result<Admitted, Status> {
        let is_munge = headers.remove(MUNGE_METADATA).is_some();
        let subject = connection.get::<Peer>().and_then(|peer| peer.subject.as_ref());
        // Who sends a token means it, whatever certificate he has.
        match (headers.remove(http::header::AUTHORIZATION), subject) {
            (Some(header), _) => match bearer(header.as_bytes()) {
                Some(token) => self.by_token(path, token),
                None => Err(Status::unauthenticated(
                    "the metadata `authorization` is not \"Bearer TOKEN\"",
                )),
            },
            (None, Some(subject)) => self.by_certificate(path, subject),
            (None, None) if is_munge => Err(Status::unauthenticated(
                "munge counts on the port without TLS (agent.listen); here a token or a client's certificate does",
            )),
            (None, None) => Err(Status::unauthenticated(
                "who calls? send a token, `authorization: Bearer TOKEN`, or connect with a certificate (docs/grpc.md)",
            )),
        }
    }

    fn address(connection: &Extensions) -> Option<IpAddr> {
        Some(connection.get::<Peer>()?.address?.ip())
    }
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}
