//! Starting a gateway, asking it, and waiting for a condition with an end.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use slurm_serve::config::Config;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::fake_agent::FakeAgent;

/// No wait is longer. Long, because the machine may be busy; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(60);

/// A lease that no test outlives.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits for `what`, not for ever.
pub async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {DEADLINE:?}"),
    }
}

/// Asks again and again until it holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(what, asking).await;
}

/// A running gateway and a client for it.
pub struct Gateway {
    pub address: SocketAddr,
    pub client: reqwest::Client,
    /// What a reload would find.
    pub settings: watch::Sender<Config>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl Gateway {
    /// Starts one that watches `agents`, with `change` made to its configuration.
    pub async fn with(agents: &[&FakeAgent], change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.gateway.agents = agents.iter().map(|agent| agent.address()).collect();
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (settings, news) = watch::channel(config);
        let serving = tokio::spawn(slurm_serve::gateway::serve(news, listener, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            client: slurm_serve::http_client::plain(),
            settings,
            stop: Some(stop),
            serving,
        }
    }

    /// Starts one and waits until all agents have been heard.
    pub async fn start(agents: &[&FakeAgent]) -> Self {
        let gateway = Self::with(agents, |_| ()).await;
        for agent in agents {
            gateway.until_agent(&agent.node, "ok").await;
        }
        gateway
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// `GET` → status and JSON.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.client.get(self.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// A chat request for `model`.
    pub fn chat(&self, model: &str) -> reqwest::RequestBuilder {
        let body = serde_json::json!({"model": model, "messages": []});
        self.client
            .post(self.url("/v1/chat/completions"))
            .body(body.to_string())
            .header("content-type", "application/json")
    }

    /// Asks `model` → status and JSON (null, if it is none).
    pub async fn ask(&self, model: &str) -> (u16, Value) {
        let answer = in_time("an answer", self.chat(model).send()).await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    /// The ids of `/v1/models`.
    pub async fn names(&self) -> Vec<String> {
        let (_, list) = self.get("/v1/models").await;
        let data = list["data"].as_array().unwrap();
        data.iter()
            .map(|entry| entry["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until `/v1/models` shows exactly `names`.
    pub async fn until_names(&self, names: &[&str]) {
        until(&format!("the list {names:?}"), async || {
            self.names().await == names
        })
        .await;
    }

    /// Waits until the agent of `node` is seen in `state`.
    pub async fn until_agent(&self, node: &str, state: &str) {
        until(&format!("{node} being {state}"), async || {
            let (_, listing) = self.get("/slurm-serve/v1/models").await;
            let agents = listing["agents"].as_array().unwrap();
            agents
                .iter()
                .any(|agent| agent["node"] == node && agent["state"] == state)
        })
        .await;
    }

    /// Tells it to end, as SIGTERM does.
    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits for its end.
    pub async fn ended(self) -> anyhow::Result<()> {
        in_time("the gateway's end", self.serving).await.unwrap()
    }
}
