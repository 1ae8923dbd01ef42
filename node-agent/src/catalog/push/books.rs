//! What Slurm's books, agents and guards say of a model that may be lost.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::sweep;
use crate::client::host_port;
use crate::slurm::Slurm;

/// For an agent, and for a guard, to say that they are there.
const ANSWER: Duration = Duration::from_secs(3);

/// Slurm, and the way to agents and guards.
#[derive(Debug)]
pub struct Books {
    slurm: Slurm,
    agent_port: u16,
    client: Option<reqwest::Client>,
}

impl Books {
    /// Agents are at `agent_port` of their nodes.
    pub fn new(slurm: Slurm, agent_port: u16) -> Self {
        let client = crate::http_client::builder().timeout(ANSWER).build();
        Self {
            slurm,
            agent_port,
            client: client.ok(),
        }
    }

    async fn node(&self, name: &str) -> Result<Option<(String, String)>, String> {
        let nodes: BTreeMap<_, _> = self.slurm.node_states().await.map_err(|e| e.to_string())?;
        match nodes.is_empty() {
            true => Err("Slurm names no node".into()),
            false => Ok(nodes.get(name).cloned()),
        }
    }

    async fn agent_answers(&self, address: &str) -> bool {
        let uri = format!("http://{}", host_port(address, self.agent_port));
        let Ok(endpoint) = tonic::transport::Endpoint::try_from(uri) else {
            return false;
        };
        let mut health = HealthClient::new(endpoint.connect_timeout(ANSWER).connect_lazy());
        let asked = health.check(HealthCheckRequest::default());
        matches!(tokio::time::timeout(ANSWER, asked).await, Ok(Ok(_)))
    }
}

#[tonic::async_trait]
impl sweep::Slurm for Books {
    async fn is_gone(&self, job_id: u32, node: &str) -> Result<bool, String> {
        let state = self.node(node).await?.map(|(_, state)| state);
        // `down*`: it does not answer either. One that Slurm does not know any more has no job.
        if state.as_deref().is_none_or(|state| state.starts_with("down")) {
            return Ok(true);
        }
        self.slurm
            .is_off_node(job_id, node)
            .await
            .map_err(|e| e.to_string())
    }

    async fn answers(&self, node: &str, url: &str) -> bool {
        if let Ok(Some((address, _))) = self.node(node).await
            && self.agent_answers(&address).await
        {
            return true;
        }
        match &self.client {
            Some(client) => client.get(format!("{url}/health")).send().await.is_ok(),
            // Nobody can tell: then it stays.
            None => true,
        }
    }
}
