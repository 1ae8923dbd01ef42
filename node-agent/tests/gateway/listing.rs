//! What there is, as clients and `sserve list` see it.

use slurm_serve::listing::{AgentState, Listing};
use slurm_serve_proto::v1::ModelState::{Failed, Loading, Ready};
use slurm_serve_proto::v1::{Cause, Ending};

use crate::fake_agent::{FakeAgent, model};
use crate::harness::{Gateway, LONG};

fn failed() -> slurm_serve_proto::v1::Model {
    let mut failed = model("ada/broken", "f", Failed, "");
    failed.ending = Some(Ending {
        cause: Cause::GpuMemory.into(),
        text: "GPU 0 has 3 GiB free".into(),
        hint: "the owner's alone".into(),
        log_tail: vec!["the owner's alone".into()],
        ..Ending::default()
    });
    failed
}

async fn some() -> (FakeAgent, Gateway) {
    let mut bobs = model("tiny", "b", Ready, "http://127.0.0.1:2/v1");
    (bobs.owner, bobs.job_id) = ("bob".into(), 8);
    let mut tiny = model("tiny", "a", Ready, "http://127.0.0.1:1/v1");
    tiny.aliases = vec!["small".into()];
    let mut hidden = model("ada/hidden", "h", Ready, "http://127.0.0.1:4/v1");
    hidden.published = false;
    let loading = model("ada/big", "c", Loading, "http://127.0.0.1:3/v1");
    let agent = FakeAgent::start("n1", LONG, vec![tiny, bobs, loading, failed(), hidden]);
    let gateway = Gateway::start(&[&agent]).await;
    (agent, gateway)
}

#[tokio::test]
async fn ready_models_are_listed_once_a_name_with_all_owners() {
    let (_agent, gateway) = some().await;
    let (status, list) = gateway.get("/v1/models").await;
    assert_eq!((status, &list["object"]), (200, &"list".into()));
    let data = list["data"].as_array().unwrap();
    assert_eq!(data.len(), 1, "{list}");
    for (key, value) in [
        ("id", "tiny"),
        ("object", "model"),
        ("owned_by", "ada, bob"),
        ("state", "ready"),
        ("node", "n1"),
    ] {
        assert_eq!(data[0][key], value, "{key}");
    }
    assert_eq!(
        (&data[0]["created"], &data[0]["replicas"], &data[0]["aliases"][0]),
        (&1.into(), &2.into(), &"small".into())
    );
}

#[tokio::test]
async fn on_demand_what_loads_and_what_failed_is_listed_too() {
    let (_agent, gateway) = some().await;
    let (_, list) = gateway.get("/v1/models?state=all").await;
    let shown: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["id"].as_str().unwrap(), entry["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            ("ada/big", "loading"),
            ("ada/broken", "failed"),
            ("tiny", "ready")
        ]
    );
    assert_eq!(list["data"][1]["error"], "GPU 0 has 3 GiB free");
    assert_eq!(gateway.get("/v1/models?state=al").await.0, 400);
}

#[tokio::test]
async fn one_model_is_found_by_name_and_alias_escaped_or_not() {
    let (agent, gateway) = some().await;
    agent
        .acknowledged(agent.say(vec![model("ada/tiny", "z", Ready, "http://127.0.0.1:5/v1")], &[]))
        .await;
    for path in ["/v1/models/ada/tiny", "/v1/models/ada%2Ftiny"] {
        let (status, entry) = gateway.get(path).await;
        assert_eq!((status, &entry["id"]), (200, &"ada/tiny".into()), "{path}");
    }
    assert_eq!(gateway.get("/v1/models/small").await.1["id"], "tiny");
    assert_eq!(gateway.get("/v1/models/ada/big").await.0, 503);
    assert_eq!(gateway.get("/v1/models/nothing").await.0, 404);
}

#[tokio::test]
async fn everything_is_listed_for_sserve_without_what_is_its_owners() {
    let (_agent, gateway) = some().await;
    let text = gateway
        .client
        .get(gateway.url(slurm_serve::listing::PATH))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    for secret in ["key-", "the owner's alone", "/home/ada"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let listing: Listing = serde_json::from_str(&text).unwrap();
    assert_eq!(listing.models.len(), 5);
    let broken = listing.models.iter().find(|m| m.name == "ada/broken").unwrap();
    assert_eq!(broken.ending.as_ref().unwrap().cause, "gpu_memory");
    assert_eq!(
        (listing.agents.len(), listing.agents[0].state),
        (1, AgentState::Ok)
    );
}

#[tokio::test]
async fn a_silent_agent_is_a_row_with_its_reason() {
    let mut agent = FakeAgent::start("n1", LONG, vec![]);
    let gateway = Gateway::start(&[&agent]).await;
    agent.kill();
    gateway.until_agent("n1", "silent").await;
    let (_, listing) = gateway.get(slurm_serve::listing::PATH).await;
    let error = listing["agents"][0]["error"].as_str().unwrap();
    assert!(
        !error.is_empty() && !error.contains('\n') && !error.contains("agent of"),
        "{error}"
    );
}

#[tokio::test]
async fn health_says_how_much_is_known() {
    let (_agent, gateway) = some().await;
    let (status, health) = gateway.get("/health").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&health["status"], &health["agents"], &health["ready"]),
        (&"ok".into(), &1.into(), &2.into())
    );
}
