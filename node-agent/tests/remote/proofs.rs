//! Who gets what by which proof.

use slurm_serve_proto::v1::GetModelRequest;
use slurm_serve_proto::v1::jobs_client::JobsClient;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_response::MessageResponse};

use crate::site::{KEY, PROXY, READER, Site, in_time, snapshot, watch};

#[tokio::test]
async fn a_proxys_token_gets_models_with_their_keys_in_clear_text() {
    let site = Site::start().await;
    let client = site.client(PROXY);
    let models = site.list(&client).await.unwrap();
    assert_eq!((models[0].name.as_str(), models[0].key.as_str()), ("tiny", KEY));
    assert_eq!(models[0].log_path, "", "what is the owner's stays the owner's");
    let (_acks, mut stream) = watch(site.catalog(&client)).await.unwrap();
    assert_eq!(snapshot(&mut stream).await[0].key, KEY);
    // He is nobody of the cluster: no job is his.
    let mut jobs = JobsClient::new(site.channel(&client));
    let status = jobs.get_model(GetModelRequest { job_id: 7 }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn a_readers_token_gets_names_and_no_keys() {
    let site = Site::start().await;
    let client = site.client(READER);
    let models = site.list(&client).await.unwrap();
    assert_eq!((models[0].name.as_str(), models[0].key.as_str()), ("tiny", ""));
    let status = watch(site.catalog(&client)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("role `proxy`"), "{status}");
}

#[tokio::test]
async fn a_wrong_token_or_none_gets_one_clear_line() {
    let site = Site::start().await;
    for (token, why) in [
        ("", "send a token"),
        ("proxy-token-012345678", "not one of this agent's"),
    ] {
        let (code, line) = site.refusal(&site.client(token)).await;
        assert_eq!(code, Code::Unauthenticated, "{token}");
        assert!(line.contains(why) && line.lines().count() == 1, "{line}");
        assert!(token.is_empty() || !line.contains(token), "{line}");
    }
}

#[tokio::test]
async fn a_certificate_has_the_roles_of_its_names() {
    let site = Site::start().await;
    let sign = |name: &str, dns: &[&str], common| {
        site.client_with(site.ca.sign(site.folder.path(), name, dns, common))
    };
    for client in [
        sign("by-name", &["other.example", "Gateway.Example"], "x"),
        sign("by-subject", &[], "gateway.example"),
    ] {
        assert_eq!(site.list(&client).await.unwrap()[0].key, KEY);
    }
    let reader = sign("reader", &["lists.example"], "x");
    assert_eq!(site.list(&reader).await.unwrap()[0].key, "");
    let (code, line) = site.refusal(&sign("nobody", &["somebody.example"], "x")).await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(line.contains("role `read`"), "{line}");
    // Who sends a token means it.
    let mut both = sign("both", &["gateway.example"], "x");
    both.token_file = site.client("wrong-token-0123456789").token_file;
    assert_eq!(site.refusal(&both).await.0, Code::Unauthenticated);
    // Signed by somebody else, it opens no connection.
    let stranger = crate::pki::Ca::new("another CA");
    let own = stranger.sign(site.folder.path(), "strange", &["gateway.example"], "x");
    let (code, line) = site.refusal(&site.client_with(own)).await;
    assert!(
        code != Code::Unauthenticated && line.lines().count() == 1,
        "{code:?} {line}"
    );
}

#[tokio::test]
async fn the_gateway_follows_an_agent_over_tls() {
    let site = Site::start().await;
    let mut config = slurm_serve::config::Config {
        client: site.client(PROXY),
        ..Default::default()
    };
    config.gateway.agents = vec![format!("n1=https://localhost:{}", site.tls_port)];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let list = format!("http://{}/v1/models", listener.local_addr().unwrap());
    let (_settings, news) = tokio::sync::watch::channel(config);
    let gateway = slurm_serve::gateway::serve(news, listener, std::future::pending());
    let asking = async {
        loop {
            let answer = slurm_serve::http_client::plain()
                .get(&list)
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap();
            if answer.contains("\"tiny\"") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = gateway => panic!("{ended:?}"),
        () = in_time("the model", asking) => {}
    }
}

#[tokio::test]
async fn without_any_proof_there_are_health_and_the_contract_on_both_ports() {
    let site = Site::start().await;
    assert_open(site.channel(&site.client(""))).await;
    let plain = format!("http://localhost:{}", site.plain_port);
    assert_open(
        tonic::transport::Endpoint::try_from(plain)
            .unwrap()
            .connect_lazy(),
    )
    .await;
}

async fn assert_open<S>(channel: S)
where
    S: tonic::client::GrpcService<tonic::body::Body> + Clone,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResponseBody: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as hyper::body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let mut health = HealthClient::new(channel.clone());
    let answer = in_time(
        "health",
        health.check(tonic_health::pb::HealthCheckRequest::default()),
    );
    let status = answer.await.unwrap().into_inner().status();
    assert_eq!(
        status,
        tonic_health::pb::health_check_response::ServingStatus::Serving
    );
    let mut reflection = ServerReflectionClient::new(channel);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(
            "slurm_serve.v1.Catalog".into(),
        )),
    };
    let asked = reflection.server_reflection_info(tokio_stream::once(request));
    let mut stream = in_time("reflection", asked).await.unwrap().into_inner();
    let answer = in_time("the contract", stream.message()).await.unwrap().unwrap();
    assert!(matches!(
        answer.message_response,
        Some(MessageResponse::FileDescriptorResponse(_))
    ));
}
