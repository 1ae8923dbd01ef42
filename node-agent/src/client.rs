//! Reaching an agent: over its Unix socket, over TCP with munge, or over TCP with TLS. Used by the runner, the gateway and `sserve`.
//!
//! [`AgentChannel`] goes into any generated client: `CatalogClient::new(AgentChannel::unix(path)?)`. Over TCP it adds a fresh
//! credential to every call and drops an answer whose sender does not prove to be root on the node meant (see `catalog.proto`); over TLS the agent's
//! certificate proves who it is, and a token or a certificate of ours who we are.

mod tls;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use slurm_serve_proto::{MUNGE_METADATA, PROOF_METADATA};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::config::Client;
use crate::munge;

/// Before the address of an agent's port with TLS.
pub const HTTPS: &str = "https://";

/// Why an agent cannot be asked: one line.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{0:?} is no address of an agent: {1}")]
    Address(String, String),
    /// The call did not get through.
    #[error("agent of {0}: {1}")]
    Transport(String, String),
    /// What `[client]` names cannot be used.
    #[error("agent of {0}: {1}")]
    Settings(String, String),
    /// munge here does not work.
    #[error(transparent)]
    Munge(#[from] munge::MungeError),
    /// The answer does not come from root on that node.
    #[error("agent of {0}: the answer is not proven to come from root there ({1}); it was dropped")]
    Unproven(String, String),
}

/// A connection to one agent; connects at the first call, and again whenever it broke. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentChannel {
    channel: Channel,
    node: Arc<str>,
    proof: Proof,
}

/// How both ends prove who they are.
#[derive(Debug, Clone)]
enum Proof {
    /// The kernel does.
    Kernel,
    /// By a credential with each call, and one with each answer.
    Munge,
    /// By certificates and a token.
    Tls(tls::Token),
}

impl AgentChannel {
    /// Over the agent's Unix socket: the kernel tells the agent who calls.
    pub fn unix(socket: &Path) -> Result<Self, ClientError> {
        let uri = format!("unix:{}", socket.display());
        let endpoint =
            Endpoint::try_from(uri.clone()).map_err(|e| ClientError::Address(uri, e.to_string()))?;
        Ok(Self {
            channel: endpoint.connect_lazy(),
            node: "this node".into(),
            proof: Proof::Kernel,
        })
    }

    /// As `gateway.agents` names it: `HOST:PORT`, `https://HOST:PORT`, or `unix:/path` on this machine.
    pub fn at(
        node: &str,
        address: &str,
        connect_timeout: Duration,
        client: &Client,
    ) -> Result<Self, ClientError> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Self::unix(Path::new(path));
        }
        match address.strip_prefix(HTTPS) {
            Some(address) => Self::tls(node, address, connect_timeout, client),
            None => Self::tcp(node, address, connect_timeout),
        }
    }

    /// Over TCP to `address` (`HOST:PORT`), where the agent of the node that Slurm calls `node` must answer.
    pub fn tcp(node: &str, address: &str, connect_timeout: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            channel: endpoint(address, connect_timeout)?.connect_lazy(),
            node: node.into(),
            proof: Proof::Munge,
        })
    }

    /// Over TCP with TLS to `address`, whose host the agent's certificate must name.
    pub fn tls(
        node: &str,
        address: &str,
        connect_timeout: Duration,
        client: &Client,
    ) -> Result<Self, ClientError> {
        let token = tls::token(client).map_err(|why| ClientError::Settings(node.into(), why))?;
        let origin = format!("{HTTPS}{address}");
        let origin =
            http::Uri::try_from(origin.clone()).map_err(|e| ClientError::Address(origin, e.to_string()))?;
        // The connector is what speaks TLS; tonic is told of it by the origin alone.
        let endpoint = endpoint(address, connect_timeout)?.origin(origin);
        Ok(Self {
            channel: endpoint.connect_with_connector_lazy(tls::Connector::new(client)),
            node: node.into(),
            proof: Proof::Tls(token),
        })
    }

    /// The clear text of `Model.key` as it came over this channel.
    pub async fn open_key(&self, key: String) -> Result<String, ClientError> {
        if !matches!(self.proof, Proof::Munge) || key.is_empty() {
            return Ok(key);
        }
        let decoded = munge::decode(key).await?;
        if decoded.uid != 0 {
            return Err(ClientError::Unproven(
                self.label(),
                format!("the key was sealed by uid {}", decoded.uid),
            ));
        }
        Ok(decoded.text())
    }

    fn label(&self) -> String {
        self.node.as_ref().to_owned()
    }
}

fn endpoint(address: &str, connect_timeout: Duration) -> Result<Endpoint, ClientError> {
    let uri = format!("http://{address}");
    let endpoint = Endpoint::try_from(uri.clone()).map_err(|e| ClientError::Address(uri, e.to_string()))?;
    Ok(endpoint
        .connect_timeout(connect_timeout)
        // A peer that vanished without a word is noticed within the lease.
        .http2_keep_alive_interval(Duration::from_secs(3))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(true))
}

impl Service<http::Request<Body>> for AgentChannel {
    type Response = http::Response<Body>;
    type Error = ClientError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ClientError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let label = self.label();
        Service::poll_ready(&mut self.channel, cx).map_err(|e| ClientError::Transport(label, because(&e)))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The service that was polled ready is the one that must be called.
        let ready = self.channel.clone();
        let mut channel = std::mem::replace(&mut self.channel, ready);
        let (proof, label) = (self.proof.clone(), self.label());
        Box::pin(async move {
            let mut nonce = None;
            match proof {
                Proof::Kernel => {}
                Proof::Tls(token) => {
                    if let Some(token) = &*token.now() {
                        request
                            .headers_mut()
                            .insert(http::header::AUTHORIZATION, token.clone());
                    }
                }
                Proof::Munge => {
                    let fresh = munge::nonce();
                    let payload = munge::call_payload(request.uri().path(), &label, &fresh);
                    let credential = munge::encode(payload, Some(0)).await?;
                    let value = http::HeaderValue::from_str(&credential).map_err(|e| {
                        ClientError::Transport(label.clone(), format!("munge's credential: {e}"))
                    })?;
                    request.headers_mut().insert(MUNGE_METADATA, value);
                    nonce = Some(fresh);
                }
            }
            let response = channel
                .call(request)
                .await
                .map_err(|e| ClientError::Transport(label.clone(), because(&e)))?;
            if let Some(nonce) = nonce {
                prove(response.headers().clone(), &nonce, &label).await?;
            }
            Ok(response)
        })
    }
}

/// The answer must carry a credential of root over our nonce. An agent that refused us has nothing to prove.
async fn prove(headers: http::HeaderMap, nonce: &str, label: &str) -> Result<(), ClientError> {
    if headers.get("grpc-status").is_some_and(|status| status != "0") {
        return Ok(());
    }
    let unproven = |why: String| ClientError::Unproven(label.to_owned(), why);
    let proof = headers.get(PROOF_METADATA).and_then(|value| value.to_str().ok());
    let proof = proof.ok_or_else(|| unproven("no proof in the answer".into()))?;
    let decoded = munge::decode(proof.to_owned()).await?;
    if decoded.uid != 0 {
        return Err(unproven(format!("signed by uid {}", decoded.uid)));
    }
    if decoded.text() != munge::proof_payload(nonce) {
        return Err(unproven("made for another call".into()));
    }
    Ok(())
}

/// `HOST:PORT`, also for a host that is an IPv6 address.
pub fn host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// What a status says, in one line that does not name the agent; what lies beneath it where tonic has only "transport error" to say.
pub fn said(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut deeper = std::error::Error::source(status);
    while let Some(source) = deeper {
        text = match source.downcast_ref() {
            Some(ClientError::Transport(_, why)) => why.clone(),
            Some(ClientError::Unproven(_, why)) => {
                format!("its answer is not proven to come from root there ({why})")
            }
            _ => source.to_string(),
        };
        deeper = source.source();
    }
    if text.is_empty() {
        text = format!("{:?}", status.code());
    }
    text
}

/// tonic says "transport error" and hides the cause in the chain of sources.
fn because(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
