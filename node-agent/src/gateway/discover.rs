//! Which agents there are: those of the configuration, else one on each of Slurm's nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::task::JoinHandle;

use super::Gateway;
use super::registry::Now;
use super::watch;
use crate::client::{AgentChannel, ClientError};
use crate::config::Config;

/// Slurm is asked again so soon as long as it has never answered.
const UNTIL_FIRST: Duration = Duration::from_secs(2);

/// NodeName → `HOST:PORT`, or `unix:/path`.
pub type Agents = BTreeMap<String, String>;

/// Reads `gateway.agents`: `NODE=HOST:PORT`, or `NODE=unix:/path` for an agent on the same machine.
pub fn parse(entries: &[String]) -> Result<Agents, String> {
    let mut agents = Agents::new();
    for entry in entries {
        let (node, address) = entry
            .split_once('=')
            .filter(|(node, address)| !node.trim().is_empty() && is_address(address.trim()))
            .ok_or_else(|| {
                format!(
                    "{entry:?} in gateway.agents is no agent; write \"NODE=HOST:PORT\" or \"NODE=unix:/path\""
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
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn channel(node: &str, address: &str, connect_timeout: Duration) -> Result<AgentChannel, ClientError> {
    match address.strip_prefix("unix:") {
        Some(path) => AgentChannel::unix(Path::new(path)),
        None => AgentChannel::tcp(node, address, connect_timeout),
    }
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
            let channel = match channel(node, address, self.config.gateway.connect_timeout) {
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

    /// Asks Slurm for its nodes for ever. While it does not answer, those known stay.
    pub async fn follow_slurm(mut self) {
        let (mut known, mut failing) = (false, false);
        loop {
            match nodes(&self.config).await {
                Ok(agents) => {
                    if failing || !known {
                        tracing::info!("Slurm names {} nodes", agents.len());
                    }
                    (known, failing) = (true, false);
                    self.set(&agents);
                }
                Err(why) => {
                    if !failing {
                        tracing::error!("{why}; the agents known stay, and Slurm is asked again");
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

/// Slurm's nodes and where they are, by `sinfo`.
async fn nodes(config: &Config) -> Result<Agents, String> {
    let program = program(&config.agent.slurm_bin_dir);
    let limit = config.agent.slurm_command_timeout;
    let mut command = Command::new(&program);
    command
        .args(["-h", "-N", "-o", "%N %o"])
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let shown = program.display();
    let output = tokio::time::timeout(limit, command.output()).await;
    let output = output
        .map_err(|_| format!("{shown} did not answer within {} s", limit.as_secs()))?
        .map_err(|e| {
            format!("{shown}: {e}; set agent.slurm_bin_dir, or name the agents in gateway.agents")
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it said nothing");
        return Err(format!("{shown} failed ({}): {said}", output.status));
    }
    let agents = read_sinfo(
        &String::from_utf8_lossy(&output.stdout),
        config.gateway.agent_port,
    );
    if agents.is_empty() {
        return Err(format!("{shown} names no node"));
    }
    Ok(agents)
}

fn program(folder: &Path) -> PathBuf {
    // An empty folder leaves the bare name, which is looked for in PATH.
    folder.join("sinfo")
}

/// `NODENAME NODEADDR` lines; a node of several partitions comes several times.
fn read_sinfo(text: &str, port: u16) -> Agents {
    let pairs = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let address = words.next().unwrap_or(name);
        let address = match address.contains(':') {
            true => format!("[{address}]:{port}"),
            false => format!("{address}:{port}"),
        };
        Some((name.to_owned(), address))
    });
    pairs.collect()
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
        ]);
        let agents = agents.unwrap();
        assert_eq!(agents["n1"], "10.0.0.1:871");
        assert_eq!(agents["n2"], "unix:/run/a.sock");
        for bad in [
            "n1",
            "n1=",
            "=h:1",
            "n1=host",
            "n1=host:0",
            "n1=host:99999",
            "n1=unix:relative",
            "n1=:5",
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
    fn sinfo_is_read_with_one_entry_a_node() {
        let agents = read_sinfo("n1 10.0.0.1\nn1 10.0.0.1\nn2 n2\nn3 fd00::3\n\n", 871);
        let shown: Vec<_> = agents.iter().map(|(n, a)| format!("{n}={a}")).collect();
        assert_eq!(shown, ["n1=10.0.0.1:871", "n2=n2:871", "n3=[fd00::3]:871"]);
    }
}
