//! Certificates for tests.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

/// One who signs.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Its own certificate, as a file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// A certificate for these DNS names and this common name, and its key, in `folder`.
    pub fn sign(&self, folder: &Path, name: &str, dns: &[&str], common_name: &str) -> (PathBuf, PathBuf) {
        let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let own = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&own, &self.0).unwrap();
        let (cert, key) = (
            folder.join(format!("{name}.pem")),
            folder.join(format!("{name}.key")),
        );
        std::fs::write(&cert, certificate.pem()).unwrap();
        write_private(&key, &own.serialize_pem());
        (cert, key)
    }
}

/// A file that is nobody else's to read, put in place in one step.
pub fn write_private(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(fresh, path).unwrap();
}
