//! Clients of HTTP: every one is made here, because TLS has to be told once in a process whose cryptography it is to use.

/// To be shaped further. Without proxies of the environment: those are not for the machines of a cluster.
#[allow(clippy::disallowed_methods)]
pub fn builder() -> reqwest::ClientBuilder {
    // The second time it says that there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}

/// As it comes.
///
/// # Panics
/// If this machine's certificates can't be read: for tests.
pub fn plain() -> reqwest::Client {
    builder()
        .build()
        .unwrap_or_else(|e| panic!("no HTTP client: {e}"))
}
