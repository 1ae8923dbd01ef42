//! Which paths lead to the engine. Everything else an engine offers (metrics, profiling, sleeping, weights updates) does not.
//!
//! Paths are compared byte by byte as they came: an escaped or dotted spelling of one matches nothing.

use http::Method;

/// What may be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Passed on.
    Pass,
    /// No such path here: 404.
    NoPath,
    /// The path is there, for the other method: 405 with this `Allow`.
    NoMethod(&'static str),
}

/// Asked with POST: units of work.
pub const WORK: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

/// Asked with GET.
const FACTS: &[&str] = &["/v1/models", "/health", "/version"];

/// A name of a model follows; names may hold slashes.
const ONE_MODEL: &str = "/v1/models/";

/// Asked with GET by peers: a Prometheus, and routers that weigh load.
const OF_PEERS: &[&str] = &["/metrics"];

/// Decides on `path`, without its query, for a peer or for one who has the key.
pub fn verdict(method: &Method, path: &str, is_peer: bool) -> Verdict {
    if is_peer && OF_PEERS.contains(&path) {
        return only(Method::GET, method, "GET");
    }
    if WORK.contains(&path) {
        return only(Method::POST, method, "POST");
    }
    if FACTS.contains(&path) || path.strip_prefix(ONE_MODEL).is_some_and(is_plain) {
        return only(Method::GET, method, "GET");
    }
    Verdict::NoPath
}

fn only(wanted: Method, method: &Method, name: &'static str) -> Verdict {
    if *method == wanted {
        Verdict::Pass
    } else {
        Verdict::NoMethod(name)
    }
}

/// Nothing that some layer behind might read as another path.
fn is_plain(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b':' | b'@' | b'+');
    name.split('/')
        .all(|part| !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_posted_and_facts_are_got() {
        assert_eq!(
            verdict(&Method::POST, "/v1/chat/completions", false),
            Verdict::Pass
        );
        assert_eq!(verdict(&Method::GET, "/v1/models", false), Verdict::Pass);
        assert_eq!(
            verdict(&Method::GET, "/v1/models/ada/tiny-1.0", false),
            Verdict::Pass
        );
        assert_eq!(
            verdict(&Method::GET, "/v1/chat/completions", false),
            Verdict::NoMethod("POST")
        );
        assert_eq!(
            verdict(&Method::DELETE, "/v1/models", false),
            Verdict::NoMethod("GET")
        );
    }

    #[test]
    fn a_peer_may_read_metrics_too() {
        assert_eq!(verdict(&Method::GET, "/metrics", true), Verdict::Pass);
        assert_eq!(verdict(&Method::POST, "/metrics", true), Verdict::NoMethod("GET"));
        assert_eq!(verdict(&Method::GET, "/tokenize", true), Verdict::NoPath);
    }

    #[test]
    fn what_an_engine_offers_beyond_the_list_is_not_there() {
        for path in [
            "/metrics",
            "/tokenize",
            "/invocations",
            "/pause",
            "/sleep",
            "/docs",
            "/",
            "/v1",
            "/v1/models/",
            "/v1/models/../../metrics",
            "/v1/models/%2e%2e/metrics",
            "/v1/models//x",
            "//v1/chat/completions",
            "/v1/chat/completions/",
            "/V1/models",
        ] {
            assert_eq!(verdict(&Method::GET, path, false), Verdict::NoPath, "{path}");
            assert_eq!(verdict(&Method::POST, path, false), Verdict::NoPath, "{path}");
        }
    }
}
