//! Certificates and keys in PEM files, for both ends of TLS.

use std::path::Path;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::private_file::read_private;

/// All certificates of a file. `name` is the setting that names it, for the error.
pub fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |why: String| format!("{name} {}: {why}", path.display());
    let text = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad("no certificate in it; PEM is meant".into())),
        all => all.map_err(|e| bad(e.to_string())),
    }
}

/// Those that sign others. One that can't be read, as bundles of a system have some, is left out; a file of such alone is an error.
pub fn roots(name: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates(name, path)?) {
        (0, _) => Err(format!(
            "{name} {}: none of its certificates can be read",
            path.display()
        )),
        _ => Ok(roots),
    }
}

/// A private key, of a file that nobody else can read.
pub fn key(name: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(read_private(name, path)?.as_bytes())
        .map_err(|e| format!("{name} {}: {e}; a private key in PEM is meant", path.display()))
}
