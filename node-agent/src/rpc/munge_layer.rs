//! The layer in front of every service on TCP: no call without a good credential, no answer without our proof (see `catalog.proto`).
//!
//! Health alone answers everybody: it tells nothing but that we live.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use slurm_serve_proto::{MUNGE_METADATA, PROOF_METADATA};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use super::caller::{Caller, roles_of};
use crate::config::Access;
use crate::munge;

const HEALTH: &str = "/grpc.health.v1.Health/";
const PEERS: &str = "/slurm_serve.v1.Peers/";

/// What the layer knows.
#[derive(Debug)]
struct Gate {
    node: String,
    access: Access,
}

/// Makes the layer.
#[derive(Debug, Clone)]
pub struct MungeLayer(Arc<Gate>);

impl MungeLayer {
    /// For the agent of `node`.
    pub fn new(node: &str, access: &Access) -> Self {
        Self(Arc::new(Gate {
            node: node.to_owned(),
            access: access.clone(),
        }))
    }
}

impl<S> tower_layer::Layer<S> for MungeLayer {
    type Service = MungeService<S>;

    fn layer(&self, inner: S) -> MungeService<S> {
        MungeService {
            gate: self.0.clone(),
            inner,
        }
    }
}

/// The layer at work.
#[derive(Debug, Clone)]
pub struct MungeService<S> {
    gate: Arc<Gate>,
    inner: S,
}

impl<S> Service<http::Request<Body>> for MungeService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The service that was polled ready is the one that must be called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let gate = self.gate.clone();
        Box::pin(async move {
            if request.uri().path().starts_with(HEALTH) {
                return inner.call(request).await;
            }
            let path = request.uri().path().to_owned();
            let credential = request.headers_mut().remove(MUNGE_METADATA);
            let (caller, proof) = match gate.admit(&path, credential).await {
                Ok(admitted) => admitted,
                Err(status) => {
                    tracing::warn!(path, "refused: {}", status.message());
                    return Ok(status.into_http());
                }
            };
            request.extensions_mut().insert(caller);
            let mut response = inner.call(request).await?;
            response.headers_mut().insert(PROOF_METADATA, proof);
            Ok(response)
        })
    }
}

impl Gate {
    async fn admit(
        &self,
        path: &str,
        credential: Option<http::HeaderValue>,
    ) -> Result<(Caller, http::HeaderValue), Status> {
        let credential = credential.ok_or_else(|| {
            Status::unauthenticated(format!(
                "no munge credential in metadata {MUNGE_METADATA}; see catalog.proto"
            ))
        })?;
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
            return Err(super::peers::not_an_agent(decoded.uid));
        }
        let roles = roles_of(decoded.uid, &self.access).await?;
        let caller = Caller {
            uid: decoded.uid,
            pid: None,
            roles,
            is_remote: true,
        };
        let proof = munge::encode(munge::proof_payload(nonce), Some(decoded.uid)).await;
        let proof = proof.map_err(|e| Status::internal(e.to_string()))?;
        let proof = http::HeaderValue::from_str(&proof).map_err(|e| Status::internal(e.to_string()))?;
        Ok((caller, proof))
    }
}
