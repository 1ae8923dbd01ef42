//! Tokens and certificates are replaced while the agent runs.

use slurm_serve::rpc;
use tonic::Code;

use crate::pki::{Ca, write_private};
use crate::site::{PROXY, READER, Site, in_time, snapshot, watch};

const FRESH: &str = "fresh-token-0123456789";

#[tokio::test]
async fn a_token_counts_as_long_as_it_stands_in_the_file() {
    let site = Site::start().await;
    let (old, fresh) = (site.client(PROXY), site.client(FRESH));
    let (_acks, mut stream) = watch(site.catalog(&old)).await.unwrap();
    snapshot(&mut stream).await;
    write_private(&site.path("tokens"), &format!("{FRESH} gateway proxy\n"));
    assert_eq!(site.list(&fresh).await.unwrap().len(), 1);
    assert_eq!(site.refusal(&old).await.0, Code::Unauthenticated);
    // Nor does whoever had it go on listening.
    let broken = in_time("the end of the stream", async {
        loop {
            if let Err(status) = stream.message().await {
                return status;
            }
        }
    });
    let broken = broken.await;
    assert_eq!(broken.code(), Code::Unauthenticated);
    assert!(broken.message().contains("does not count any more"), "{broken}");
}

#[tokio::test]
async fn a_file_that_went_bad_leaves_the_tokens_that_there_were() {
    let site = Site::start().await;
    let client = site.client(READER);
    for bad in ["a line that is none\n", "short x read\n"] {
        write_private(&site.path("tokens"), bad);
        let listed = site.list(&client).await;
        assert!(listed.is_ok(), "{bad}: {listed:?}");
    }
    std::fs::remove_file(site.path("tokens")).unwrap();
    assert!(site.list(&client).await.is_ok(), "gone");
    // One that is in order and has no token in it is meant.
    write_private(&site.path("tokens"), "# nobody\n");
    assert_eq!(site.refusal(&client).await.0, Code::Unauthenticated);
}

#[tokio::test]
async fn a_new_certificate_is_shown_from_the_next_connection_on() {
    let site = Site::start().await;
    let mut client = site.client(READER);
    let before = site.catalog(&client);
    assert!(crate::site::list(before.clone()).await.is_ok());

    // Half of it is in place: what was there before is still shown.
    let next = Ca::new("the next CA");
    let (cert, key) = next.sign(site.folder.path(), "next", &["localhost"], "n1");
    std::fs::rename(cert, site.path("server.pem")).unwrap();
    assert!(site.list(&client).await.is_ok());
    std::fs::rename(key, site.path("server.key")).unwrap();

    let (_, line) = site.refusal(&client).await;
    assert!(line.contains("TLS") && line.contains("UnknownIssuer"), "{line}");
    next.write(&site.path("next-ca.pem"));
    client.ca_file = site.path("next-ca.pem");
    assert!(site.list(&client).await.is_ok());
    // Connections that stand are not touched.
    assert!(crate::site::list(before).await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_used_at_the_start_is_said_and_nothing_is_served() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::start().await;
    let open = |name: &str| {
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(site.path(name), mode).unwrap();
    };
    let serve = async || {
        let config = &site.config;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rooms = site.rooms.clone();
        let ended = std::future::ready(());
        rpc::serve_tls(rooms, listener, &config.agent.tls, &config.access, ended).await
    };
    assert!(serve().await.is_ok());
    assert!(rpc::tls_expiry(&site.config.agent.tls, &site.config.access).is_ok());
    open("server.key");
    let error = format!("{:#}", serve().await.unwrap_err());
    assert!(
        error.contains("agent.tls.key") && error.contains("chmod 0600"),
        "{error}"
    );
    let seen = rpc::tls_expiry(&site.config.agent.tls, &site.config.access);
    assert!(
        seen.unwrap_err().contains("agent.tls.key"),
        "and so does `sserve doctor`"
    );
    open("tokens");
    let error = format!("{:#}", serve().await.unwrap_err());
    assert!(
        error.contains("access.token_file") && error.contains("chmod 0600"),
        "{error}"
    );
}
