//! The job's key, and whether a request carries it.

use std::hint::black_box;

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The key. It has no `Debug`, so that it can't reach a log by accident.
pub struct Key(Vec<u8>);

impl Key {
    pub fn new(key: &str) -> Self {
        Self(key.as_bytes().to_vec())
    }

    /// Whether `headers` carry `Authorization: Bearer KEY`, exactly once. An empty key admits nobody.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let Some((scheme, token)) = value.as_bytes().split_at_checked(7) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"bearer ") && !self.0.is_empty() && self.equals(token.trim_ascii())
    }

    /// Takes the same time wherever the first difference is; only the length shows.
    fn equals(&self, token: &[u8]) -> bool {
        let pairs = self.0.iter().zip(token);
        let difference = pairs.fold(0u8, |seen, (a, b)| black_box(seen | (a ^ b)));
        self.0.len() == token.len() && difference == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(key: &str, authorization: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, value.parse().expect("a header value"));
        }
        Key::new(key).admits(&headers)
    }

    #[test]
    fn only_the_very_key_is_admitted() {
        assert!(admits("k3y", &["Bearer k3y"]));
        assert!(admits("k3y", &["bearer  k3y"]));
        for wrong in [
            &["Bearer k3"][..],
            &["Bearer k3yy"],
            &["Bearer K3y"],
            &["Basic k3y"],
            &["k3y"],
            &["Bearer"],
            &["Bearer "],
            &[],
        ] {
            assert!(!admits("k3y", wrong), "{wrong:?}");
        }
    }

    #[test]
    fn two_headers_and_an_empty_key_admit_nobody() {
        assert!(!admits("k3y", &["Bearer k3y", "Bearer k3y"]));
        assert!(!admits("", &["Bearer "]));
    }
}
