//! The job's key, and whether a request carries it.

use std::hint::black_box;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

/// Headers that are looked at.
const MOST: usize = 2;

/// The key. It has no `Debug`, so that it can't reach a log by accident.
pub struct Key(Vec<u8>);

impl Key {
    pub fn new(key: &str) -> Self {
        Self(key.as_bytes().to_vec())
    }

    /// Whether `headers` carry `Authorization: Bearer KEY`. An empty key admits nobody.
    ///
    /// sglang-router adds its worker's key to its client's header, so one right among two is enough; none of them goes any further.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        headers
            .get_all(AUTHORIZATION)
            .iter()
            .take(MOST)
            .any(|value| self.is_in(value))
    }

    fn is_in(&self, value: &HeaderValue) -> bool {
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
    fn the_key_beside_another_admits_and_an_empty_key_nobody() {
        assert!(admits("k3y", &["Bearer other", "Bearer k3y"]));
        assert!(!admits("k3y", &["Bearer a", "Bearer b", "Bearer k3y"]));
        assert!(!admits("", &["Bearer "]));
    }
}
