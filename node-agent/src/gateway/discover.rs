//! Which agents there are: those of the configuration, else one on each of Slurm's nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Gateway;
use super::registry::Now;
use super::watch;
use crate::client::{AgentChannel, HTTPS, host_port};
use crate::config::Config;
use crate::slurm::{Slurm, SlurmNode};

/// Slurm is asked again so soon as long as it has never answered.
const UNTIL_FIRST: Duration = Duration::from_secs(2);

/// NodeName → `HOST:PORT`, `https://HOST:PORT`, or `unix:/path`.
pub type Agents = BTreeMap<String, String>;

/// Reads `gateway.agents`: `NODE=HOST:PORT`, `NODE=https://HOST:PORT`, or `NODE=unix:/path` for an agent on the same machine.
pub fn parse(entries: &[String]) -> Result<Agents, String> {
    let mut agents = Agents::new();
    for entry in entries {
        let (node, address) = entry
            .split_once('=')
            .filter(|(node, address)| !node.trim().is_empty() && is_address(address.trim()))
            .ok_or_else(|| {
                format!(
                    "{entry:?} in gateway.agents is no agent; write \"NODE=HOST:PORT\", \"NODE=https://HOST:PORT\" or \"NODE=unix:/path\""
                )
            })?;
        let (node, address) = (node.trim().to_owned(), address.trim().to_owned());
        if agents.insert(node.clone(), address).is_some() {
            return Err(format!("gateway.agents names {node} twice; keep one of them"));
        }
    }
    Ok(agents)
}

fn is_address(address: &str) -> bool {
    if let Some(path) = address.strip_prefix("unix:") {
        return path.starts_with('/');
    }
    let address = address.strip_prefix(HTTPS).unwrap_or(address);
    let port = address
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The watchers; dropping it ends them.
pub struct Watchers {
    gateway: Arc<Gateway>,
    config: Config,
    running: BTreeMap<String, (String, JoinHandle<()>)>,
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.running.values().for_each(|(_, task)| task.abort());
    }
}

impl Watchers {
    /// None yet.
    pub fn new(gateway: Arc<Gateway>, config: Config) -> Self {
        Self {
            gateway,
            config,
            running: BTreeMap::new(),
        }
    }

    /// Starts and ends watchers until they are those of `agents`.
    pub fn set(&mut self, agents: &Agents) {
        let gateway = &self.gateway;
        self.running.retain(|node, (address, task)| {
            let stays = agents.get(node) == Some(address);
            if !stays {
                tracing::info!("agent of {node} at {address}: no longer watched");
                task.abort();
                gateway.registry.write().remove_node(node);
            }
            stays
        });
        for (node, address) in agents {
            if self.running.contains_key(node) {
                continue;
            }
            let connect = self.config.gateway.connect_timeout;
            let channel = match AgentChannel::at(node, address, connect, &self.config.client) {
                Ok(channel) => channel,
                Err(e) => {
                    tracing::error!("agent of {node}: {e}");
                    continue;
                }
            };
            let now = Now::read();
            self.gateway.registry.write().add_node(node, now);
            // An agent that has just started may wait that long for its runners before it says anything.
            let patience = self.config.agent.recover_timeout + Duration::from_secs(5);
            let named = watch::Agent {
                node: node.clone(),
                address: address.clone(),
                channel,
            };
            let task = watch::watch(self.gateway.clone(), named, patience);
            self.running
                .insert(node.clone(), (address.clone(), tokio::spawn(task)));
        }
    }

    /// Watches these for ever, or, if there are none, Slurm's nodes.
    pub async fn follow(&mut self, agents: &Agents) {
        if agents.is_empty() {
            self.follow_slurm().await;
        } else {
            self.set(agents);
            std::future::pending::<()>().await;
        }
    }

    /// Asks Slurm for its nodes for ever. While it does not answer, those known stay.
    async fn follow_slurm(&mut self) {
        let slurm = Slurm::new(&self.config.agent);
        let (mut known, mut failing) = (false, false);
        loop {
            match nodes(&slurm, self.config.gateway.agent_port).await {
                Ok(agents) => {
                    if failing || !known {
                        tracing::info!("Slurm names {} nodes", agents.len());
                    }
                    (known, failing) = (true, false);
                    self.set(&agents);
                }
                Err(why) => {
                    if !failing {
                        tracing::error!(
                            "{why}; the agents known stay, and Slurm is asked again (or name them in gateway.agents)"
                        );
                    }
                    failing = true;
                }
            }
            let interval = self.config.gateway.discover_interval;
            tokio::time::sleep(if known {
                interval
            } else {
                interval.min(UNTIL_FIRST)
            })
            .await;
        }
    }
}

/// Slurm's nodes, and where their agents are.
async fn nodes(slurm: &Slurm, port: u16) -> Result<Agents, String> {
    let nodes = slurm.nodes().await.map_err(|e| e.to_string())?;
    if nodes.is_empty() {
        return Err("Slurm names no node".to_owned());
    }
    Ok(at_port(nodes, port))
}

fn at_port(nodes: Vec<SlurmNode>, port: u16) -> Agents {
    let named = nodes
        .into_iter()
        .map(|node| (node.name, host_port(&node.address, port)));
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_read_from_the_configuration() {
        let agents = parse(&[
            "n1=10.0.0.1:871".into(),
            " n2 = unix:/run/a.sock ".into(),
            "n3=[fd00::1]:871".into(),
            "n4=https://n4.example:872".into(),
        ]);
        let agents = agents.unwrap();
        assert_eq!(agents["n1"], "10.0.0.1:871");
        assert_eq!(agents["n2"], "unix:/run/a.sock");
        assert_eq!(agents["n4"], "https://n4.example:872");
        for bad in [
            "n1",
            "n1=",
            "=h:1",
            "n1=host",
            "n1=host:0",
            "n1=host:99999",
            "n1=unix:relative",
            "n1=:5",
            "n1=https://h",
            "n1=http://h:5",
            "n1=https://h:5/v1",
        ] {
            let error = parse(&[bad.into()]).unwrap_err();
            assert!(error.contains("NODE=HOST:PORT"), "{bad}: {error}");
        }
        assert!(
            parse(&["a=h:1".into(), "a=h:2".into()])
                .unwrap_err()
                .contains("twice")
        );
    }

    #[test]
    fn an_agent_is_at_its_nodes_address() {
        let nodes = [("n1", "10.0.0.1"), ("n2", "n2"), ("n3", "fd00::3")].map(|(name, address)| SlurmNode {
            name: name.into(),
            address: address.into(),
        });
        let agents = at_port(nodes.into(), 871);
        let shown: Vec<_> = agents.iter().map(|(n, a)| format!("{n}={a}")).collect();
        assert_eq!(shown, ["n1=10.0.0.1:871", "n2=n2:871", "n3=[fd00::3]:871"]);
    }
}
