//! smg, sglang-router and vllm-router, as they are on PyPI.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::proxy::{Keeper, Proxy, client, free_port, home, settings, until};
use crate::served::serve;

const SOON: Duration = Duration::from_secs(30);

/// How each is started, as in docs/proxies.md.
async fn start(software: &'static str) -> Proxy {
    let top = home(software);
    let program = match software {
        "smg" | "sglang-router" => top.join("bin/smg"),
        _ => top.join("bin/vllm-router"),
    };
    let vocabularies = top.with_file_name("tiktoken");
    Proxy::start("/workers", move |port| {
        let mut command = Command::new(&program);
        if software != "vllm-router" {
            command.arg("launch");
        }
        command
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--enable-igw"])
            .args([
                "--prometheus-host",
                "127.0.0.1",
                "--prometheus-port",
                &free_port().to_string(),
            ])
            .args(["--policy", "round_robin", "--health-check-interval-secs", "2"])
            .env("TIKTOKEN_ENCODINGS_BASE", &vocabularies);
        command
    })
    .await
}

fn keep(router: &Proxy, software: &str) -> Keeper {
    let url = router.url("");
    Keeper::of(settings(&format!(
        "name = \"r\"\nkind = \"router\"\nsoftware = \"{software}\"\nurl = \"{url}\""
    )))
}

/// sglang-router alone sends each model its own key, whatever its client sent: smg passes the client's on, vllm-router none.
fn peers(software: &str) -> &'static [&'static str] {
    if software == "sglang-router" {
        &[]
    } else {
        &["127.0.0.1"]
    }
}

async fn workers(router: &Proxy) -> Vec<Value> {
    let all = router.get("/workers", "").await;
    let all = all["workers"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .filter(|worker| worker["status"] != "draining")
        .collect()
}

/// Through everything that can happen to one router.
async fn through(software: &'static str) {
    let mut router = start(software).await;
    let (one, two) = (
        serve("tiny", "n1", 1, peers(software)).await,
        serve("other", "n1", 2, peers(software)).await,
    );

    let keeper = keep(&router, software);
    keeper.tell(&[&one.entry, &two.entry]).await;
    assert_eq!(workers(&router).await.len(), 2);
    assert_eq!(router.chat("tiny", "EMPTY").await, (200, "job 1".into()));
    assert_eq!(router.chat("other", "EMPTY").await, (200, "job 2".into()));

    // A goodbye: nothing is sent to it from the moment that it is confirmed.
    keeper.tell(&[&two.entry]).await;
    let (status, said) = router.chat("tiny", "EMPTY").await;
    match software {
        // It sends what it does not know to some other worker.
        "vllm-router" => assert_ne!(said, "job 1"),
        _ => assert!(status >= 400, "{status} {said}"),
    }
    assert_eq!(router.chat("other", "EMPTY").await, (200, "job 2".into()));

    // What the site added itself is the site's.
    let theirs = serve("theirs", "elsewhere", 9, &["127.0.0.1"]).await;
    let body = json!({ "url": theirs.entry.url, "model_id": "theirs", "api_key": theirs.entry.key, "worker_type": "regular" });
    let added = client()
        .post(router.url("/workers"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert!(added.status().is_success(), "{added:?}");
    until("the site's own worker", SOON, async || {
        workers(&router).await.len() == 2
    })
    .await;

    // It forgets everything when it is restarted, and is told again.
    router.down();
    router.up().await;
    until("the router to be told again", SOON, async || {
        router.chat("other", "EMPTY").await == (200, "job 2".into())
    })
    .await;
    assert_eq!(workers(&router).await.len(), 1);
    let added = client()
        .post(router.url("/workers"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert!(added.status().is_success(), "{added:?}");

    // A model that went while nobody kept the catalog goes when somebody does again; that of a node that is not known stays.
    let far = serve("far", "n2", 3, peers(software)).await;
    keeper.tell_of(&[&two.entry, &far.entry], &["n1", "n2"]).await;
    drop(keeper);
    let keeper = keep(&router, software);
    keeper.tell_of(&[], &["n1"]).await;
    until("what is left to be shown", SOON, async || {
        let urls: Vec<_> = workers(&router)
            .await
            .iter()
            .map(|it| it["url"].as_str().unwrap().to_owned())
            .collect();
        urls.len() == 2 && urls.contains(&far.entry.url) && urls.contains(&theirs.entry.url)
    })
    .await;

    // An attempt after a failure has the same address and another generation.
    keeper.tell_of(&[&far.entry], &["n1", "n2"]).await;
    let next = slurm_serve::catalog::push::Entry {
        generation: format!("{}x", far.entry.generation),
        ..far.entry.clone()
    };
    keeper.tell_of(&[&next], &["n1", "n2"]).await;
    until("the next attempt to answer", SOON, async || {
        router.chat("far", "EMPTY").await == (200, "job 3".into())
    })
    .await;
    keeper.tell_of(&[], &["n1", "n2"]).await;
    assert_eq!(workers(&router).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smg_is_kept() {
    through("smg").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_router_is_kept() {
    through("sglang-router").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_router_is_kept() {
    through("vllm-router").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_sends_no_key_gets_nothing_unless_it_is_a_peer() {
    for software in ["vllm-router", "smg"] {
        let router = start(software).await;
        let stranger = serve("tiny", "n1", 1, &["10.9.8.7"]).await;
        let keeper = keep(&router, software);
        keeper.tell(&[&stranger.entry]).await;
        // As every OpenAI client, this one sends a key, if only any.
        assert_eq!(router.chat("tiny", "EMPTY").await.0, 401, "{software}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_keep_the_same_router_agree() {
    let router = start("smg").await;
    let one = serve("tiny", "n1", 1, &[]).await;
    let (first, second) = (keep(&router, "smg"), keep(&router, "smg"));
    let entries = [&one.entry];
    tokio::join!(first.tell(&entries), second.tell(&entries));
    assert_eq!(workers(&router).await.len(), 1);
    tokio::join!(first.tell(&[]), second.tell(&[]));
    assert_eq!(workers(&router).await.len(), 0);
}
