//! One agent, asked: every call has an end, and every answer is one of three kinds.

use std::path::Path;
use std::time::Duration;

use slurm_serve::client::{AgentChannel, ClientError};
use slurm_serve::config;
use slurm_serve_proto::v1::catalog_client::CatalogClient;
use slurm_serve_proto::v1::jobs_client::JobsClient;
use slurm_serve_proto::v1::telemetry_client::TelemetryClient;
use slurm_serve_proto::v1::{
    AwaitModelRequest, AwaitModelResponse, GetModelRequest, ListModelsRequest, ListModelsResponse, LogChunk,
    Model, NodeSample, QuiesceRequest, ResumeRequest, SampleTelemetryRequest, StopModelRequest,
    StreamLogRequest,
};
use tonic::{Code, Status};

use crate::failure::{Exit, Failure};

/// A driver may have a call to finish before it is let go of.
const QUIESCE: Duration = Duration::from_secs(30);

/// Why an agent gave no answer that is one.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// It knows no model of that job, or none of ours: it says the same of both.
    NotFound,
    /// It answered, and said no.
    Refused(String),
    /// It did not answer, or not provably.
    Silent(String),
}

/// An agent and how to reach it.
#[derive(Debug, Clone)]
pub struct Agent {
    node: String,
    channel: AgentChannel,
    timeout: Duration,
}

impl Agent {
    /// The agent of this node, by its socket; `node` is what people call it.
    pub fn local(node: &str, socket: &Path, timeout: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            node: node.into(),
            channel: AgentChannel::unix(socket)?,
            timeout,
        })
    }

    /// The agent of `node`, at an address as in `gateway.agents`.
    pub fn remote(
        node: &str,
        address: &str,
        connect: Duration,
        client: &config::Client,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            node: node.into(),
            channel: AgentChannel::at(node, address, connect.min(client.timeout), client)?,
            timeout: client.timeout,
        })
    }

    /// Its node, for people.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// All models it may tell us of.
    pub async fn models(&self, include_ended: bool) -> Result<ListModelsResponse, Trouble> {
        let mut catalog = CatalogClient::new(self.channel.clone());
        self.within(
            self.timeout,
            catalog.list_models(ListModelsRequest { include_ended }),
        )
        .await
    }

    /// The newest model of a job.
    pub async fn model(&self, job_id: u32) -> Result<Model, Trouble> {
        let mut jobs = self.jobs();
        self.within(self.timeout, jobs.get_model(GetModelRequest { job_id }))
            .await
    }

    /// The model as soon as it differs from `seen_revision`, else after `wait`.
    pub async fn await_model(
        &self,
        job_id: u32,
        seen_revision: u64,
        wait: Duration,
    ) -> Result<AwaitModelResponse, Trouble> {
        let mut jobs = self.jobs();
        let request = AwaitModelRequest {
            job_id,
            seen_revision,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        };
        self.within(wait + self.timeout, jobs.await_model(request)).await
    }

    /// Asks for the model's end.
    pub async fn stop(&self, job_id: u32) -> Result<(), Trouble> {
        let mut jobs = self.jobs();
        self.within(self.timeout, jobs.stop_model(StopModelRequest { job_id }))
            .await
            .map(drop)
    }

    /// The log's kept lines (at most `tail_lines`; 0: all), then what comes if `follow`.
    pub async fn log(
        &self,
        job_id: u32,
        tail_lines: u32,
        follow: bool,
    ) -> Result<tonic::Streaming<LogChunk>, Trouble> {
        let mut jobs = self.jobs();
        let request = StreamLogRequest {
            job_id,
            tail_lines,
            follow,
        };
        self.within(self.timeout, jobs.stream_log(request)).await
    }

    /// The next lines of a log; `None` at its end. Without `patient` it must come in time.
    pub async fn next_lines(
        &self,
        stream: &mut tonic::Streaming<LogChunk>,
        patient: bool,
    ) -> Result<Option<LogChunk>, Trouble> {
        let message = stream.message();
        match patient {
            true => message.await.map_err(|status| self.trouble(&status)),
            false => tokio::time::timeout(self.timeout, message)
                .await
                .map_err(|_| self.late(self.timeout))?
                .map_err(|status| self.trouble(&status)),
        }
    }

    /// The last sample of its node.
    pub async fn sample(&self) -> Result<NodeSample, Trouble> {
        let first = async {
            let mut stream = self
                .telemetry()
                .sample_telemetry(SampleTelemetryRequest::default())
                .await?;
            let sample = stream.get_mut().message().await?;
            let nothing = || Status::unavailable("it ended its samples without one");
            sample.map(tonic::Response::new).ok_or_else(nothing)
        };
        self.within(self.timeout, first).await
    }

    /// Lets go of the driver for so many seconds.
    pub async fn quiesce(&self, for_s: u32) -> Result<(), Trouble> {
        let mut telemetry = self.telemetry();
        let answer = telemetry.quiesce(QuiesceRequest { for_s });
        self.within(self.timeout.max(QUIESCE), answer).await.map(drop)
    }

    /// Takes the driver up again.
    pub async fn resume(&self) -> Result<(), Trouble> {
        let mut telemetry = self.telemetry();
        self.within(self.timeout, telemetry.resume(ResumeRequest {}))
            .await
            .map(drop)
    }

    /// The job's key for the model, in clear text; empty if it is not for us.
    pub async fn key(&self, model: &Model) -> Result<String, Failure> {
        let key = self.channel.open_key(model.key.clone()).await;
        key.map_err(|e| {
            Failure::failed(format!(
                "the key of job {} cannot be opened: {e}; ask again, a sealed key can be read once",
                model.job_id
            ))
        })
    }

    /// What went wrong with the job's model, as an end of the program.
    pub fn failure(&self, trouble: Trouble, job_id: u32) -> Failure {
        match trouble {
            Trouble::NotFound => nothing_there(job_id),
            Trouble::Refused(why) => Failure::failed(format!("agent of {}: {why}", self.node)),
            Trouble::Silent(why) => Failure::new(Exit::Unreachable, silent(&why)),
        }
    }

    fn telemetry(&self) -> TelemetryClient<AgentChannel> {
        TelemetryClient::new(self.channel.clone())
    }

    fn jobs(&self) -> JobsClient<AgentChannel> {
        JobsClient::new(self.channel.clone())
    }

    async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Trouble> {
        let answer = tokio::time::timeout(limit, call)
            .await
            .map_err(|_| self.late(limit))?;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| self.trouble(&status))
    }

    fn late(&self, limit: Duration) -> Trouble {
        Trouble::Silent(format!("agent of {}: no answer within {limit:?}", self.node))
    }

    fn trouble(&self, status: &Status) -> Trouble {
        // What our own channel says comes as the status's source; an agent's own answer has none.
        let source = std::error::Error::source(status);
        if let Some(error) = source.and_then(|source| source.downcast_ref::<ClientError>()) {
            return Trouble::Silent(error.to_string());
        }
        let message = status.message();
        match status.code() {
            Code::NotFound => Trouble::NotFound,
            Code::Unavailable | Code::Cancelled | Code::Unknown => {
                Trouble::Silent(format!("agent of {}: {message}", self.node))
            }
            _ if source.is_some() => Trouble::Silent(format!("agent of {}: {message}", self.node)),
            _ if message.is_empty() => Trouble::Refused(status.code().description().to_owned()),
            _ => Trouble::Refused(message.to_owned()),
        }
    }
}

/// The end of a program that asked for what is not there or not ours.
pub fn nothing_there(job: impl std::fmt::Display) -> Failure {
    Failure::new(
        Exit::NotFound,
        format!("job {job} serves nothing here, or it is not yours; `sserve status` lists your models"),
    )
}

/// The line about an agent that does not answer.
pub fn silent(why: &str) -> String {
    format!("{why}; is `slurm-serve agent` running there?")
}
