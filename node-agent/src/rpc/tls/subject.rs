//! Whom a client's certificate names, and until when.

use std::time::Duration;

use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::{Any, Decode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// `commonName`, of X.520.
const COMMON_NAME: &str = "2.5.4.3";

/// Somebody with a certificate that our CA has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Its DNS names and its common name.
    pub names: Vec<String>,
    /// Since the epoch.
    pub expires: Duration,
}

impl Subject {
    /// Reads a certificate that rustls has verified.
    pub(super) fn of(der: &[u8]) -> Result<Self, String> {
        let certificate = Certificate::from_der(der).map_err(|e| e.to_string())?;
        let body = &certificate.tbs_certificate;
        let mut names = Vec::new();
        let alternative = body.get::<SubjectAltName>().map_err(|e| e.to_string())?;
        for name in alternative.map_or_else(Vec::new, |(_, names)| names.0) {
            if let GeneralName::DnsName(name) = name {
                names.push(name.to_string());
            }
        }
        for part in body.subject.0.iter().flat_map(|part| part.0.iter()) {
            if part.oid.to_string() == COMMON_NAME
                && let Some(text) = text(&part.value)
            {
                names.push(text);
            }
        }
        Ok(Self {
            names,
            expires: body.validity.not_after.to_unix_duration(),
        })
    }

    /// Is one of its names among `listed`? `*` stands for all that have a certificate.
    pub(super) fn is_one_of(&self, listed: &[String]) -> bool {
        let named = |name: &String| self.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        listed.iter().any(|name| name == "*" || named(name))
    }

    /// For the log.
    pub(super) fn shown(&self) -> String {
        match self.names.first() {
            Some(name) => name.escape_debug().take(100).collect(),
            None => "a certificate without a name".into(),
        }
    }
}

fn text(value: &Any) -> Option<String> {
    let utf8 = value
        .decode_as::<Utf8StringRef<'_>>()
        .map(|it| it.as_str().to_owned());
    let printable = || {
        value
            .decode_as::<PrintableStringRef<'_>>()
            .map(|it| it.as_str().to_owned())
    };
    let ia5 = || {
        value
            .decode_as::<Ia5StringRef<'_>>()
            .map(|it| it.as_str().to_owned())
    };
    let teletex = || {
        value
            .decode_as::<TeletexStringRef<'_>>()
            .map(|it| it.as_str().to_owned())
    };
    utf8.or_else(|_| printable())
        .or_else(|_| ia5())
        .or_else(|_| teletex())
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(dns: &[&str], common_name: &str) -> Subject {
        let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common_name);
        params.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let key = rcgen::KeyPair::generate().unwrap();
        Subject::of(params.self_signed(&key).unwrap().der()).unwrap()
    }

    #[test]
    fn a_certificate_is_known_by_its_dns_names_and_its_common_name() {
        let subject = certificate(&["a.example", "b.example"], "Gateway É");
        assert_eq!(subject.names, ["a.example", "b.example", "Gateway É"]);
        assert_eq!(subject.expires, Duration::from_secs(1_935_792_000));
        let listed =
            |names: &[&str]| subject.is_one_of(&names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        assert!(listed(&["x", "B.Example"]) && listed(&["*"]));
        assert!(!listed(&[]) && !listed(&["example", "c.example", ""]));
    }

    #[test]
    fn what_is_no_certificate_is_an_error_and_a_nameless_one_is_nobody() {
        assert!(Subject::of(b"nothing").is_err());
        let nobody = certificate(&[], "");
        assert!(!nobody.is_one_of(&["a.example".into()]));
    }
}
