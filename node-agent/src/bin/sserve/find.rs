//! Which agents there are, and which of them has a job's model.
//!
//! Here, by the Unix socket, if this node has an agent; else where Slurm says that the job runs; else, for a job that Slurm has
//! forgotten, every agent is asked.

use std::time::Duration;

use slurm_serve::client::host_port;
use slurm_serve::config::Config;
use slurm_serve::slurm::{JobPlace, Slurm, SlurmError};
use slurm_serve_proto::v1::Model;
use tokio::task::JoinSet;

use crate::agent::{Agent, Trouble, nothing_there, silent};
use crate::failure::{Exit, Failure};
use crate::job_ref::JobRef;

/// How many agents are asked at once: enough to hide their latency, few enough for one process's descriptors and munged.
const AT_ONCE: usize = 64;

/// All that this host knows of agents.
#[derive(Debug)]
pub struct Agents {
    config: Config,
    slurm: Slurm,
}

/// A job's model and the agent that has it.
#[derive(Debug)]
pub struct Found {
    /// Who has it.
    pub agent: Agent,
    /// The job's number.
    pub job_id: u32,
    /// The model as it was when found.
    pub model: Model,
}

/// Where a job's model is.
#[derive(Debug)]
pub enum Whereabouts {
    /// An agent has it.
    Found(Box<Found>),
    /// The job has no node yet; the text is Slurm's reason, ` (Resources)`, or empty.
    Pending(String),
    /// The job is on its nodes, but the agent there knows no model of it, or none of ours.
    Nothing(JobPlace),
}

impl Agents {
    /// As the configuration says.
    pub fn new(config: Config) -> Self {
        let slurm = Slurm::new(&config.agent);
        Self { config, slurm }
    }

    /// The settings they were made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The job's model; an error if there is none.
    pub async fn find(&self, job: &JobRef) -> Result<Found, Failure> {
        match self.look(job).await? {
            Whereabouts::Found(found) => Ok(*found),
            Whereabouts::Pending(reason) => Err(Failure::new(
                Exit::NotFound,
                format!("job {job} is still pending{reason}; `sserve wait {job}` waits for its model"),
            )),
            Whereabouts::Nothing(_) => Err(nothing_there(job)),
        }
    }

    /// Where the job's model is. An error if neither Slurm nor any agent knows such a job.
    pub async fn look(&self, job: &JobRef) -> Result<Whereabouts, Failure> {
        let (id, mut place) = match job {
            JobRef::Raw(id) => (*id, None),
            JobRef::Part(text) => {
                let place = self.slurm.place(text).await.map_err(|e| slurm_failed(&e))?;
                let place = place.ok_or_else(|| {
                    Failure::new(
                        Exit::NotFound,
                        format!("Slurm knows no job {text} any more; name it by its number (`sacct -j {text} -o JobIDRaw`)"),
                    )
                })?;
                (place.job_id, Some(place))
            }
        };
        let mut said_no = false;
        let mut local_trouble = None;
        if let Some(agent) = self.local() {
            match agent.model(id).await {
                Ok(model) => return Ok(found(agent, id, model)),
                Err(Trouble::NotFound) => said_no = true,
                Err(trouble) => local_trouble = Some(agent.failure(trouble, id)),
            }
        }
        if place.is_none() {
            match self.slurm.place(&id.to_string()).await {
                Ok(known) => place = known,
                // Without Slurm's commands there is only the agent of this node.
                Err(_) if said_no => return Err(nothing_there(id)),
                Err(error) => return Err(local_trouble.unwrap_or_else(|| slurm_failed(&error))),
            }
        }
        match place {
            None => self.ask_everybody(id).await,
            Some(place) if place.node_list.is_empty() && place.state == "PENDING" => {
                // Slurm says "None" until it has looked at the job for the first time.
                Ok(Whereabouts::Pending(match place.reason.as_str() {
                    "" | "None" => String::new(),
                    reason => format!(" ({reason})"),
                }))
            }
            Some(place) => {
                let names = self.slurm.host_names(&place.node_list).await;
                let first = names.map_err(|e| slurm_failed(&e))?.into_iter().next();
                let Some(first) = first else {
                    return self.ask_everybody(id).await;
                };
                if self.is_here(&first) {
                    return match local_trouble {
                        Some(failure) => Err(failure),
                        None if said_no => Ok(Whereabouts::Nothing(place)),
                        None => Err(Failure::new(
                            Exit::Unreachable,
                            format!(
                                "no agent's socket at {}; is `slurm-serve agent` running here?",
                                self.config.agent.socket.display()
                            ),
                        )),
                    };
                }
                let agent = self.remote(&first).await?;
                match agent.model(id).await {
                    Ok(model) => Ok(found(agent, id, model)),
                    Err(Trouble::NotFound) => Ok(Whereabouts::Nothing(place)),
                    Err(trouble) => Err(agent.failure(trouble, id)),
                }
            }
        }
    }

    /// The agent of this node, if it has one.
    pub fn local(&self) -> Option<Agent> {
        let socket = &self.config.agent.socket;
        match socket.exists() {
            true => {
                let named = Some(self.config.agent.node_name.as_str()).filter(|name| !name.is_empty());
                Agent::local(named.unwrap_or("this node"), socket, self.config.client.timeout).ok()
            }
            false => None,
        }
    }

    /// Every agent that this host can name, sorted by node; those that can only be reached through this node's socket come as
    /// one. An error if there is nobody to ask.
    pub async fn all(&self) -> Result<Vec<Agent>, Failure> {
        match (self.addresses().await, self.local()) {
            (Ok(addresses), local) if !addresses.is_empty() => {
                let mut agents = Vec::new();
                for (node, address) in addresses {
                    agents.push(match &local {
                        Some(local) if self.is_here(&node) => local.clone(),
                        _ => self.connect(&node, &address)?,
                    });
                }
                Ok(agents)
            }
            (_, Some(local)) => Ok(vec![local]),
            (Err(error), None) => Err(Failure::new(
                Exit::Unreachable,
                format!(
                    "no agent on this node ({}), and {error}",
                    self.config.agent.socket.display()
                ),
            )),
            (Ok(_), None) => Err(Failure::new(
                Exit::Unreachable,
                "nobody to ask: no gateway in the config (client.gateway), no node in Slurm, no agent on this one",
            )),
        }
    }

    /// The agents of these nodes, as Slurm writes a list of them (`gpu[01-04],gpu09`).
    pub async fn named(&self, nodes: &str) -> Result<Vec<Agent>, Failure> {
        let names = match nodes.contains('[') {
            true => self.slurm.host_names(nodes).await.map_err(|e| slurm_failed(&e))?,
            false => nodes.split(',').map(|name| name.trim().to_owned()).collect(),
        };
        if let Some(bad) = names.iter().find(|name| !is_host_name(name)) {
            return Err(Failure::usage(format!("--nodes: {bad:?} is no node's name")));
        }
        let local = self.local();
        let mut agents = Vec::new();
        for name in names {
            agents.push(match &local {
                Some(local) if self.is_here(&name) => local.clone(),
                _ => self.remote(&name).await?,
            });
        }
        Ok(agents)
    }

    /// Asks all `agents`, a bounded number at once, and gives the answers in their order.
    pub async fn ask<T, F>(agents: &[Agent], question: impl Fn(Agent) -> F) -> Vec<Result<T, Trouble>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Trouble>> + Send + 'static,
    {
        let mut answers: Vec<Option<Result<T, Trouble>>> = agents.iter().map(|_| None).collect();
        let mut running = JoinSet::new();
        let mut waiting = agents.iter().enumerate();
        loop {
            while running.len() < AT_ONCE
                && let Some((n, agent)) = waiting.next()
            {
                let asked = question(agent.clone());
                running.spawn(async move { (n, asked.await) });
            }
            match running.join_next().await {
                Some(Ok((n, answer))) => answers[n] = Some(answer),
                Some(Err(_)) => {}
                None => break,
            }
        }
        let broken = || Err(Trouble::Silent("asking it failed inside sserve".into()));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(broken))
            .collect()
    }

    async fn ask_everybody(&self, id: u32) -> Result<Whereabouts, Failure> {
        let agents = self.all().await?;
        let answers = Self::ask(&agents, |agent| async move { agent.model(id).await }).await;
        let mut trouble = None;
        for (agent, answer) in agents.into_iter().zip(answers) {
            match answer {
                Ok(model) => return Ok(found(agent, id, model)),
                Err(Trouble::NotFound) => {}
                Err(Trouble::Refused(why) | Trouble::Silent(why)) => trouble = Some(why),
            }
        }
        match trouble {
            None => Err(nothing_there(id)),
            Some(why) => Err(Failure::new(
                Exit::Unreachable,
                format!(
                    "Slurm has forgotten job {id}, and not every agent could be asked for it: {}",
                    silent(&why)
                ),
            )),
        }
    }

    async fn remote(&self, node: &str) -> Result<Agent, Failure> {
        let addresses = self.addresses().await.map_err(|e| slurm_failed(&e))?;
        let address = addresses
            .into_iter()
            .find(|(name, _)| name == node)
            .map(|(_, address)| address)
            .unwrap_or_else(|| host_port(node, self.config.gateway.agent_port));
        self.connect(node, &address)
    }

    fn connect(&self, node: &str, address: &str) -> Result<Agent, Failure> {
        let connect = self.config.gateway.connect_timeout;
        Agent::remote(node, address, connect, &self.config.client).map_err(|e| Failure::failed(e.to_string()))
    }

    /// `(node, address)` as the config lists them, else all of Slurm's nodes at the configured port.
    async fn addresses(&self) -> Result<Vec<(String, String)>, SlurmError> {
        let listed = &self.config.gateway.agents;
        let mut addresses: Vec<(String, String)> = if listed.is_empty() {
            let port = self.config.gateway.agent_port;
            let nodes = self.slurm.nodes().await?.into_iter();
            nodes
                .map(|node| (node.name, host_port(&node.address, port)))
                .collect()
        } else {
            // One that is written wrongly is refused where it is used, as no address.
            let pairs = listed
                .iter()
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            pairs
                .map(|(node, address)| (node.trim().to_owned(), address.trim().to_owned()))
                .collect()
        };
        addresses.sort();
        Ok(addresses)
    }

    /// Whether Slurm's `node` is this host, as far as names tell.
    fn is_here(&self, node: &str) -> bool {
        self.config.agent.own_node() == node
    }
}

/// How long a job on its nodes may go without a model before it is taken for one that serves nothing: its prolog and first step come first.
pub const UNTIL_KNOWN: Duration = Duration::from_secs(30);

fn found(agent: Agent, job_id: u32, model: Model) -> Whereabouts {
    Whereabouts::Found(Box::new(Found { agent, job_id, model }))
}

fn is_host_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('-') && name.chars().all(allowed)
}

fn slurm_failed(error: &SlurmError) -> Failure {
    Failure::new(Exit::Unreachable, error.to_string())
}

/// `HOST:PORT`, with brackets round an IPv6 address.
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_listed_agents_take_the_place_of_slurms_nodes() {
        let mut config = Config::default();
        config.gateway.agents = vec!["n2=10.0.0.2:871".into(), "n1 = 10.0.0.1:872".into()];
        let found = Agents::new(config).addresses().await.unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(found, [pair("n1", "10.0.0.1:872"), pair("n2", "10.0.0.2:871")]);
    }
}
