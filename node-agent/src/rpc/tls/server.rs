//! What rustls needs to answer: our certificate and key, and who signs certificates of clients. Read again when a file changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::subject::Subject;
use super::tokens::Tokens;
use crate::config::{Access, Tls};
use crate::pem;
use crate::private_file::Followed;

const CERT: &str = "agent.tls.cert";

/// rustls's settings for `tls`, as its files say.
pub fn server(tls: &Tls) -> Result<Followed<ServerConfig>, String> {
    let files = [tls.cert.as_path(), &tls.key, &tls.client_ca];
    let named: Vec<&Path> = files
        .into_iter()
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    let tls = tls.clone();
    Followed::new(&named, move || make(&tls))
}

/// Reads all that the port with TLS is made of, as the agent would. When our certificate expires, since the epoch.
pub fn expiry(tls: &Tls, access: &Access) -> Result<Duration, String> {
    make(tls)?;
    Tokens::read(&access.token_file)?;
    let chain = pem::certificates(CERT, &tls.cert)?;
    let own = chain.first().ok_or("no certificate")?;
    Subject::of(own).map(|subject| subject.expires)
}

fn make(tls: &Tls) -> Result<ServerConfig, String> {
    let chain = pem::certificates(CERT, &tls.cert)?;
    let key = pem::key("agent.tls.key", &tls.key)?;
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = if tls.client_ca.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let roots = Arc::new(pem::roots("agent.tls.client_ca", &tls.client_ca)?);
        // Whoever has none may still have a token.
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .allow_unauthenticated()
            .build()
            .map_err(|e| format!("agent.tls.client_ca {}: {e}", tls.client_ca.display()))?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| {
        format!(
            "agent.tls.cert {} and agent.tls.key {} do not go together: {e}",
            tls.cert.display(),
            tls.key.display()
        )
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
