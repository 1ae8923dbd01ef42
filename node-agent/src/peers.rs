//! The other agents of a job: a task on another node than the job's first has its model there, and our agent asks for it.
//!
//! What is passed on is said to come from root here, on behalf of a uid that our own kernel told us. Which node a job's model is on is
//! learnt when its task opens it, and forgotten with the job.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slurm_serve_proto::v1::peers_client::PeersClient;
use slurm_serve_proto::v1::*;
use tonic::{Code, Response, Status};

use crate::client::{AgentChannel, host_port, said};
use crate::config;
use crate::slurm::Slurm;

/// For reaching the other node; a task tries again for as long as its `agent_wait`.
const CONNECT: Duration = Duration::from_secs(2);
/// For an answer, beyond what the other agent was told to wait. Shorter than the plugin's own patience with us.
const ANSWER: Duration = Duration::from_secs(4);

/// Routes remembered: the epilog of a heterogeneous job's component names its own job, not the one that was asked for. A task whose route
/// is forgotten opens its model again.
const ROUTES: usize = 1024;

/// Where a job's model is, for whom.
#[derive(Debug, Clone)]
struct Route {
    first: String,
    uid: u32,
}

/// The way to other agents.
#[derive(Debug)]
pub struct Peers {
    node: String,
    slurm: Slurm,
    /// The TCP port of every agent; none where this one has none.
    port: Option<u16>,
    channels: Mutex<HashMap<String, AgentChannel>>,
    routes: Mutex<HashMap<u32, Route>>,
}

impl Peers {
    /// For the agent of `node`. Other agents listen on the same port as this one.
    pub fn new(node: &str, slurm: &Slurm, config: &config::Agent) -> Self {
        let port = config
            .listen
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        Self {
            node: node.to_owned(),
            slurm: slurm.clone(),
            port,
            channels: Mutex::default(),
            routes: Mutex::default(),
        }
    }

    /// Opens the model of a job that is served on `first`.
    pub async fn open(
        &self,
        first: &str,
        uid: u32,
        request: OpenModelRequest,
    ) -> Result<OpenModelResponse, Status> {
        let job_id = request.job_id;
        let request = PeerOpenModelRequest {
            asking: Some(self.asking(uid)),
            request: Some(request),
        };
        let ask = async |channel| PeersClient::new(channel).open_model(request).await;
        let answer = self.ask(first, ANSWER, ask).await?;
        let first = first.to_owned();
        let mut routes = lock(&self.routes);
        if routes.len() >= ROUTES {
            routes.clear();
        }
        routes.insert(job_id, Route { first, uid });
        drop(routes);
        Ok(answer)
    }

    /// Launches it.
    pub async fn launch(
        &self,
        first: &str,
        uid: u32,
        request: LaunchModelRequest,
    ) -> Result<LaunchModelResponse, Status> {
        let request = PeerLaunchModelRequest {
            asking: Some(self.asking(uid)),
            request: Some(request),
        };
        let ask = async |channel| PeersClient::new(channel).launch_model(request).await;
        self.ask(first, ANSWER, ask).await
    }

    /// Awaits a change of it, its key in clear text; `None` if `uid` has opened no model of that job here.
    pub async fn await_model(
        &self,
        uid: u32,
        request: AwaitModelRequest,
    ) -> Option<Result<AwaitModelResponse, Status>> {
        let route = lock(&self.routes).get(&request.job_id).cloned();
        let first = route.filter(|route| route.uid == uid)?.first;
        Some(self.await_on(&first, uid, request).await)
    }

    /// The job is over here.
    pub fn forget(&self, job_id: u32) {
        lock(&self.routes).remove(&job_id);
    }

    async fn await_on(
        &self,
        first: &str,
        uid: u32,
        request: AwaitModelRequest,
    ) -> Result<AwaitModelResponse, Status> {
        let within = Duration::from_millis(request.wait_ms.max(1000).into()) + ANSWER;
        let request = PeerAwaitModelRequest {
            asking: Some(self.asking(uid)),
            request: Some(request),
        };
        let channel = self.channel(first).await?;
        let ask = async |channel| PeersClient::new(channel).await_model(request).await;
        let mut answer = self.ask_over(first, channel.clone(), within, ask).await?;
        if let Some(model) = &mut answer.model {
            let opened = channel.open_key(std::mem::take(&mut model.key)).await;
            model.key = opened.map_err(|e| Status::unavailable(e.to_string()))?;
        }
        Ok(answer)
    }

    fn asking(&self, uid: u32) -> Asking {
        Asking {
            uid,
            node: self.node.clone(),
        }
    }

    async fn ask<T, F>(
        &self,
        first: &str,
        within: Duration,
        ask: impl FnOnce(AgentChannel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = self.channel(first).await?;
        self.ask_over(first, channel, within, ask).await
    }

    async fn ask_over<T, F>(
        &self,
        first: &str,
        channel: AgentChannel,
        within: Duration,
        ask: impl FnOnce(AgentChannel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let why = match tokio::time::timeout(within, ask(channel)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            // The other agent's own word, for the user as it stands.
            Ok(Err(status))
                if !matches!(status.code(), Code::Unknown | Code::Unavailable | Code::Cancelled) =>
            {
                return Err(status);
            }
            Ok(Err(status)) => said(&status),
            Err(_) => format!("no answer within {} s", within.as_secs()),
        };
        // It may have another address by now.
        lock(&self.channels).remove(first);
        Err(Status::unavailable(format!(
            "the agent of {first}, where the job's model is served, cannot be asked: {why}"
        )))
    }

    async fn channel(&self, node: &str) -> Result<AgentChannel, Status> {
        if let Some(known) = lock(&self.channels).get(node) {
            return Ok(known.clone());
        }
        let port = self.port.ok_or_else(|| {
            Status::failed_precondition(format!(
                "the job's model is served on {node}, and agents here do not reach each other (agent.listen is empty): run the step \
                 there (srun -w {node})"
            ))
        })?;
        let nodes = self
            .slurm
            .nodes()
            .await
            .map_err(|e| Status::unavailable(e.to_string()))?;
        let found = nodes.into_iter().find(|known| known.name == node);
        let found = found.ok_or_else(|| Status::unavailable(format!("Slurm names no node {node}")))?;
        let channel = AgentChannel::tcp(node, &host_port(&found.address, port), CONNECT)
            .map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(lock(&self.channels)
            .entry(node.to_owned())
            .or_insert(channel)
            .clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
