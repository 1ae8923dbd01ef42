//! Headers that belong to one hop (RFC 9110, 7.6.1) and go no further.

use http::header::{
    AUTHORIZATION, CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

const ONE_HOP: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Drops what was meant for this hop, the names listed in `Connection` among it.
pub fn strip(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed.iter().chain(&ONE_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// As [`strip`], and what the engine need not know: the job's key above all.
pub fn strip_request(headers: &mut HeaderMap) {
    strip(headers);
    for name in [AUTHORIZATION, HOST, EXPECT] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_for_the_engine_is_left() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer k3y"),
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("host", "node1:18100"),
            ("content-type", "application/json"),
            ("content-length", "2"),
            ("x-request-id", "r1"),
        ] {
            headers.insert(name, value.parse().expect("a value"));
        }
        strip_request(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "content-type", "x-request-id"]);
    }
}
