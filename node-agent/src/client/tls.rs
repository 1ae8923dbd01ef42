//! Our end of an agent's port with TLS. All files are read when a connection is made, so that whoever replaces one restarts nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, crypto};
use tonic::codegen::Service;

use crate::config::Client;
use crate::pem;
use crate::private_file::{Followed, read_private};

/// Where distributions keep what they trust.
const SYSTEM: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// The header with our token, if we have one.
pub(super) type Token = Arc<Followed<Option<HeaderValue>>>;

/// Reads `client.token_file`.
pub(super) fn token(client: &Client) -> Result<Token, String> {
    let path = client.token_file.clone();
    if path.as_os_str().is_empty() {
        return Followed::new(&[], || Ok(None)).map(Arc::new);
    }
    let read = path.clone();
    Followed::new(&[path.as_path()], move || parse(&read).map(Some)).map(Arc::new)
}

fn parse(path: &Path) -> Result<HeaderValue, String> {
    let text = read_private("client.token_file", path)?;
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(token), None) = (lines.next(), lines.next()) else {
        return Err(format!(
            "client.token_file {}: one line with one token is meant",
            path.display()
        ));
    };
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .ok()
        .filter(|_| !token.contains(char::is_whitespace))
        .ok_or_else(|| format!("client.token_file {}: that is no token", path.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Connects, and makes sure that the other end is who its certificate must say.
#[derive(Debug, Clone)]
pub(super) struct Connector(Arc<Client>);

impl Connector {
    pub(super) fn new(client: &Client) -> Self {
        Self(Arc::new(client.clone()))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let config = config(&client).map_err(io::Error::other)?;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
            stream.set_nodelay(true)?;
            let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
            secured
                .map(TokioIo::new)
                .map_err(|e| io::Error::other(format!("TLS: {e}")))
        })
    }
}

fn config(client: &Client) -> Result<ClientConfig, String> {
    let is_set = |path: &Path| !path.as_os_str().is_empty();
    let ca = match is_set(&client.ca_file) {
        true => client.ca_file.clone(),
        false => SYSTEM
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
            .ok_or("this system has no CAs of its own; set client.ca_file")?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(pem::roots("client.ca_file", &ca)?);
    let mut config = match is_set(&client.client_cert) {
        false => builder.with_no_client_auth(),
        true => {
            let chain = pem::certificates("client.client_cert", &client.client_cert)?;
            let key = pem::key("client.client_key", &client.client_key)?;
            let builder = builder.with_client_auth_cert(chain, key);
            builder
                .map_err(|e| format!("client.client_cert and client.client_key do not go together: {e}"))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_file_holds_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            parse(&path)
        };
        assert_eq!(read("# ours\n abcdef \n").unwrap(), "Bearer abcdef");
        for bad in ["", "# none", "two words", "two\nlines", "b\u{7f}d"] {
            let error = read(bad).unwrap_err();
            assert!(
                error.contains("client.token_file") && !error.contains("words"),
                "{error}"
            );
        }
    }
}
