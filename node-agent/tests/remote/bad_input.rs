//! What nobody of the product's own would send: each gets an end, and one clear line where there is somebody to tell it to.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use slurm_serve::config;
use slurm_serve_proto::v1::ListModelsRequest;
use slurm_serve_proto::v1::catalog_client::CatalogClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::site::{PROXY, READER, Site, channel, in_time, list};

#[tokio::test]
async fn an_agent_of_another_name_or_of_an_unknown_ca_is_not_believed() {
    let site = Site::start().await;
    let client = site.client(READER);
    let there = channel(&format!("https://127.0.0.1:{}", site.tls_port), &client);
    let status = list(CatalogClient::new(there)).await;
    let line = slurm_serve::client::said(&status.unwrap_err());
    assert!(
        line.contains("TLS") && line.contains("not valid for name"),
        "{line}"
    );
    crate::pki::Ca::new("another CA").write(&site.path("other.pem"));
    let other = config::Client {
        ca_file: site.path("other.pem"),
        ..client
    };
    let (_, line) = site.refusal(&other).await;
    assert!(
        line.contains("UnknownIssuer") && line.lines().count() == 1,
        "{line}"
    );
}

#[tokio::test]
async fn tls_to_the_plain_port_and_plain_text_to_the_other_come_to_an_end() {
    let site = Site::start().await;
    let client = site.client(PROXY);
    let there = channel(&format!("https://localhost:{}", site.plain_port), &client);
    let status = list(CatalogClient::new(there)).await;
    let line = slurm_serve::client::said(&status.unwrap_err());
    assert!(line.contains("TLS") && line.lines().count() == 1, "{line}");
    // A client without TLS, as curl or grpcurl -plaintext would come.
    let endpoint = format!("http://localhost:{}", site.tls_port);
    let plain = tonic::transport::Endpoint::try_from(endpoint)
        .unwrap()
        .connect_lazy();
    let mut catalog = CatalogClient::new(plain);
    let asked = in_time("an answer", catalog.list_models(ListModelsRequest::default()));
    assert!(asked.await.is_err());
    assert_eq!(
        site.list(&client).await.unwrap().len(),
        1,
        "and the port serves on"
    );
}

#[tokio::test]
async fn whoever_connects_and_says_nothing_is_not_kept() {
    let site = Site::start().await;
    let began = Instant::now();
    let mut silent = TcpStream::connect(("127.0.0.1", site.tls_port)).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    let mut rest = Vec::new();
    // Five seconds are promised; the end of the connection is what counts here, not how busy the machine is.
    let _ = in_time("the end of the connection", silent.read_to_end(&mut rest)).await;
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "it had its time: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_token_in_clear_text_is_refused_with_the_reason() {
    let site = Site::start().await;
    let (status, message) = post(&site, "authorization", &format!("Bearer {PROXY}"), frame(b"")).await;
    assert_eq!(status, Code::Unauthenticated);
    assert!(
        message.contains("over TLS only") && message.contains("replace it"),
        "{message}"
    );
    let (status, message) = post(&site, "x-none", "x", frame(b"")).await;
    assert_eq!(status, Code::Unauthenticated);
    assert!(message.contains("munge"), "{message}");
}

#[tokio::test]
async fn messages_that_are_none_or_too_long_are_refused_and_nothing_else_is_harmed() {
    let site = Site::start().await;
    let client = site.client(PROXY);
    for (body, code) in [
        // Field 1 as a length that is not there.
        (frame(&[0x0a, 0xff, 0xff, 0x01]), Code::Internal),
        // Longer than any question.
        (frame(&vec![0; 64 << 10]), Code::OutOfRange),
        // A frame that claims more than it has.
        (Bytes::from_static(&[0, 0, 0, 0, 9, 1]), Code::Internal),
        // Compressed, which nobody agreed to.
        (Bytes::from_static(&[1, 0, 0, 0, 0]), Code::Internal),
        (Bytes::from_static(b"not gRPC at all"), Code::Internal),
    ] {
        let (answered, message) = post_tls(&site, &client, body.clone()).await;
        assert_eq!(answered, code, "{message} {:?}", body.len());
        assert!(message.lines().count() <= 1, "{message}");
    }
    assert_eq!(site.list(&client).await.unwrap().len(), 1);
}

/// One message of a gRPC stream.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    frame.into()
}

fn request(body: Bytes) -> Request<Full<Bytes>> {
    Request::post("http://localhost/slurm_serve.v1.Catalog/ListModels")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(body))
        .unwrap()
}

/// Over the plain port, by hand, with this header.
async fn post(site: &Site, name: &'static str, value: &str, body: Bytes) -> (Code, String) {
    let stream = TcpStream::connect(("127.0.0.1", site.plain_port)).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let mut request = request(body);
    request.headers_mut().insert(name, value.parse().unwrap());
    let answer = in_time("an answer", sender.send_request(request)).await.unwrap();
    told(answer.map(|body| body.boxed())).await
}

/// Over the port with TLS.
async fn post_tls(site: &Site, client: &config::Client, body: Bytes) -> (Code, String) {
    use tonic::codegen::Service;
    let mut channel = site.channel(client);
    let request = request(body).map(tonic::body::Body::new);
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = in_time("an answer", channel.call(request)).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap();
    status(&parts.headers, body.trailers())
}

async fn told<B: hyper::body::Body>(answer: http::Response<B>) -> (Code, String)
where
    B::Error: std::fmt::Debug,
{
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap();
    status(&parts.headers, body.trailers())
}

fn status(headers: &http::HeaderMap, trailers: Option<&http::HeaderMap>) -> (Code, String) {
    let status = tonic::Status::from_header_map(headers)
        .or_else(|| trailers.and_then(tonic::Status::from_header_map))
        .expect("a status");
    (status.code(), status.message().to_owned())
}
