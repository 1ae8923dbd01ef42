//! `Hooks`: the plugin's words. Unix socket only.

use slurm_serve_proto::v1::hooks_server::Hooks;
use slurm_serve_proto::v1::*;
use tonic::{Request, Response, Status};

use super::{Caller, Rooms};
use crate::job::{Job, JobError};
use crate::serve::OpenError;

#[tonic::async_trait]
impl Hooks for Rooms {
    async fn job_started(
        &self,
        request: Request<JobStartedRequest>,
    ) -> Result<Response<JobStartedResponse>, Status> {
        Caller::of(&request)?.must_be_root()?;
        let told = request.into_inner();
        let node = &self.models.world().node;
        if !told.node.is_empty() && told.node != *node {
            tracing::error!(
                "Slurm calls this node {}, this agent {node}: set agent.node_name, or no job here gets its model",
                told.node
            );
        }
        let job = Job {
            id: told.job_id,
            uid: told.uid,
            user: told.user,
            restart_count: told.restart_count,
            cluster: told.cluster,
            node_list: told.node_list,
            gpus: told.gpus,
            cuda_visible_devices: told.cuda_visible_devices,
            work_dir: told.work_dir,
            end_ms: told.end_time.saturating_mul(1000),
            options: Some(told.options.unwrap_or_default()),
        };
        tracing::debug!(job = job.id, uid = job.uid, "started");
        self.models.job_started(job);
        Ok(Response::new(JobStartedResponse {}))
    }

    async fn open_model(
        &self,
        request: Request<OpenModelRequest>,
    ) -> Result<Response<OpenModelResponse>, Status> {
        let uid = Caller::of(&request)?.user()?;
        self.models.recovered().await;
        let opened = match self.models.open(uid, request.get_ref()).await {
            Err(OpenError::OtherNode(_, first)) => {
                return self
                    .peers
                    .open(&first, uid, request.into_inner())
                    .await
                    .map(Response::new);
            }
            opened => opened,
        };
        opened.map(Response::new).map_err(status)
    }

    async fn launch_model(
        &self,
        request: Request<LaunchModelRequest>,
    ) -> Result<Response<LaunchModelResponse>, Status> {
        let uid = Caller::of(&request)?.user()?;
        match self.models.launch(uid, request.get_ref()).await {
            Ok(()) => Ok(Response::new(LaunchModelResponse {})),
            Err(OpenError::OtherNode(_, first)) => self
                .peers
                .launch(&first, uid, request.into_inner())
                .await
                .map(Response::new),
            Err(e) => Err(status(e)),
        }
    }

    async fn job_ending(
        &self,
        request: Request<JobEndingRequest>,
    ) -> Result<Response<JobEndingResponse>, Status> {
        Caller::of(&request)?.must_be_root()?;
        let job_id = request.get_ref().job_id;
        tracing::debug!(job = job_id, "ending");
        self.models.job_ending(job_id).await;
        Ok(Response::new(JobEndingResponse {}))
    }

    async fn job_ended(
        &self,
        request: Request<JobEndedRequest>,
    ) -> Result<Response<JobEndedResponse>, Status> {
        Caller::of(&request)?.must_be_root()?;
        let job_id = request.get_ref().job_id;
        tracing::debug!(job = job_id, "ended");
        self.peers.forget(job_id);
        self.models.job_ended(job_id).await;
        Ok(Response::new(JobEndedResponse {}))
    }
}

pub(super) fn status(error: OpenError) -> Status {
    let text = error.to_string();
    match error {
        OpenError::Job(JobError::Slurm(..)) => Status::unavailable(text),
        OpenError::Job(JobError::NotHere(_))
        | OpenError::NotAsked(_)
        | OpenError::OtherNode(..)
        | OpenError::NotOf(..) => Status::failed_precondition(text),
        OpenError::StillEnding(_) => Status::unavailable(text),
        OpenError::NotYours(_) => Status::permission_denied(text),
        OpenError::Refused(_) => Status::invalid_argument(text),
        OpenError::NoRoom(..) => Status::resource_exhausted(text),
        OpenError::Internal(..) => Status::internal(text),
    }
}
