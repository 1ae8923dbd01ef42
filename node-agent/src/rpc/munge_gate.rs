//! Who calls by munge's word, and our proof to him (see `catalog.proto`).

use std::net::IpAddr;

use http::{Extensions, HeaderMap};
use slurm_serve_proto::MUNGE_METADATA;
use tonic::Status;
use tonic::transport::server::TcpConnectInfo;

use super::caller::{Caller, Via, roles_of};
use super::gate::{Admitted, Gate};
use crate::config::Access;
use crate::munge;

const PEERS: &str = "/slurm_serve.v1.Peers/";

/// The proofs of the plain port.
#[derive(Debug)]
pub struct MungeGate {
    node: String,
    access: Access,
}

impl MungeGate {
    /// For the agent of `node`.
    pub fn new(node: &str, access: &Access) -> Self {
        Self {
            node: node.to_owned(),
            access: access.clone(),
        }
    }
}

impl Gate for MungeGate {
    async fn admit(
        &self,
        path: &str,
        headers: &mut HeaderMap,
        _connection: &Extensions,
    ) -> Result<Admitted, Status> {
        let bearer = headers.remove(http::header::AUTHORIZATION);
        let credential = match (headers.remove(MUNGE_METADATA), bearer) {
            (Some(credential), _) => credential,
            (None, Some(_)) => {
                return Err(Status::unauthenticated(
                    "tokens are taken over TLS only (agent.tls.listen): this one has crossed the network in clear text, replace it",
                ));
            }
            (None, None) => {
                return Err(Status::unauthenticated(format!(
                    "no munge credential in metadata {MUNGE_METADATA}; see catalog.proto"
                )));
            }
        };
        let text = credential
            .to_str()
            .map_err(|_| Status::unauthenticated("the credential is no text"))?;
        let decoded = munge::decode(text.to_owned())
            .await
            .map_err(|e| Status::unauthenticated(e.to_string()))?;
        let payload = decoded.text();
        let mut lines = payload.split('\n');
        let (method, node, nonce) = (lines.next(), lines.next(), lines.next().unwrap_or_default());
        if method != Some(path) {
            return Err(Status::unauthenticated(
                "the credential was made for another method",
            ));
        }
        if node != Some(self.node.as_str()) {
            return Err(Status::unauthenticated(format!(
                "the credential was made for another node than {}",
                self.node
            )));
        }
        if nonce.len() != 32 || !nonce.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Status::unauthenticated(
                "the credential's nonce is not 32 hex digits",
            ));
        }
        // Said here already: what only root may send in length nobody else gets to send.
        if path.starts_with(PEERS) && decoded.uid != 0 {
            return Err(super::peers::not_an_agent(Some(decoded.uid)));
        }
        let roles = roles_of(decoded.uid, &self.access).await?;
        let caller = Caller {
            uid: Some(decoded.uid),
            pid: None,
            roles,
            via: Via::Munge,
        };
        let proof = munge::encode(munge::proof_payload(nonce), Some(decoded.uid)).await;
        let proof = proof.map_err(|e| Status::internal(e.to_string()))?;
        let proof = http::HeaderValue::from_str(&proof).map_err(|e| Status::internal(e.to_string()))?;
        Ok(Admitted {
            caller,
            proof: Some(proof),
            counts: None,
        })
    }

    fn address(connection: &Extensions) -> Option<IpAddr> {
        Some(connection.get::<TcpConnectInfo>()?.remote_addr?.ip())
    }
}
