//! Who gets a node's telemetry, and who may let go of its driver.

use slurm_serve_proto::v1::telemetry_client::TelemetryClient;
use slurm_serve_proto::v1::{NodeSample, QuiesceRequest, ResumeRequest, SampleTelemetryRequest};
use tonic::{Code, Status, Streaming};

use slurm_serve::client::AgentChannel;

use crate::site::{PROXY, READER, Site, in_time};

type Client = TelemetryClient<AgentChannel>;

fn client(site: &Site, token: &str) -> Client {
    TelemetryClient::new(site.channel(&site.client(token)))
}

async fn stream(client: &mut Client) -> Result<Streaming<NodeSample>, Status> {
    let answer = client.sample_telemetry(SampleTelemetryRequest::default());
    Ok(in_time("the stream", answer).await?.into_inner())
}

#[tokio::test]
async fn whoever_reads_gets_samples_and_lets_go_of_nothing() {
    let site = Site::start().await;
    for token in [READER, PROXY] {
        let mut client = client(&site, token);
        let mut samples = stream(&mut client).await.unwrap();
        let mut sequence = 0;
        // The first may come before the driver has answered.
        loop {
            let sample = in_time("a sample", samples.message()).await.unwrap().unwrap();
            assert!(sample.sequence > sequence, "{sample:?}");
            sequence = sample.sequence;
            if sample.gpus.iter().any(|gpu| gpu.power_watts.is_some()) {
                assert_eq!((sample.node.as_str(), sample.cluster.as_str()), ("n1", "lab"));
                break;
            }
        }
        let refused = client.quiesce(QuiesceRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let refused = client.resume(ResumeRequest {}).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let refused = stream(&mut client(&site, "a-token-of-nobody")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
}

#[tokio::test]
async fn watchers_are_so_many_and_who_leaves_makes_room() {
    let site = Site::with(|config| config.agent.max_watchers = 2).await;
    let mut client = client(&site, READER);
    let first = stream(&mut client).await.unwrap();
    let _second = stream(&mut client).await.unwrap();
    let refused = stream(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("agent.max_watchers"), "{refused}");
    drop(first);
    let room = async { while stream(&mut client).await.is_err() {} };
    in_time("room for another", room).await;
}

#[tokio::test]
async fn where_telemetry_is_off_the_agent_says_so() {
    let site = Site::with(|config| config.telemetry.enabled = false).await;
    let refused = stream(&mut client(&site, READER)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("[telemetry] enabled"), "{refused}");
}
