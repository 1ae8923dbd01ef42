//! `Peers`: what the agents of a job's other nodes ask. TCP only.

use slurm_serve_proto::v1::peers_server::Peers;
use slurm_serve_proto::v1::*;
use tonic::{Request, Response, Status};

use super::caller::{Roles, Via, shown};
use super::hooks::status;
use super::jobs::awaited;
use super::{Caller, Rooms};

impl Rooms {
    /// The user on whose behalf root on another of the job's nodes asks.
    async fn behalf<T>(
        &self,
        request: &Request<T>,
        asking: Option<&Asking>,
        job_id: u32,
    ) -> Result<u32, Status> {
        let caller = Caller::of(request)?;
        if caller.uid != Some(0) || caller.via != Via::Munge {
            return Err(not_an_agent(caller.uid));
        }
        let asking = asking.ok_or_else(|| Status::invalid_argument("`asking` is missing"))?;
        self.models
            .must_be_of(job_id, &asking.node)
            .await
            .map_err(status)?;
        Ok(asking.uid)
    }
}

/// Only root on another node is one.
pub(super) fn not_an_agent(uid: Option<u32>) -> Status {
    Status::permission_denied(format!(
        "only the agents of a job's other nodes may call this, not {}",
        shown(uid)
    ))
}

fn missing() -> Status {
    Status::invalid_argument("`request` is missing")
}

#[tonic::async_trait]
impl Peers for Rooms {
    async fn open_model(
        &self,
        request: Request<PeerOpenModelRequest>,
    ) -> Result<Response<OpenModelResponse>, Status> {
        let PeerOpenModelRequest {
            asking,
            request: wanted,
        } = request.get_ref();
        let wanted = wanted.as_ref().ok_or_else(missing)?;
        let uid = self.behalf(&request, asking.as_ref(), wanted.job_id).await?;
        self.models.recovered().await;
        self.models
            .open(uid, wanted)
            .await
            .map(Response::new)
            .map_err(status)
    }

    async fn launch_model(
        &self,
        request: Request<PeerLaunchModelRequest>,
    ) -> Result<Response<LaunchModelResponse>, Status> {
        let PeerLaunchModelRequest {
            asking,
            request: wanted,
        } = request.get_ref();
        let wanted = wanted.as_ref().ok_or_else(missing)?;
        let uid = self.behalf(&request, asking.as_ref(), wanted.job_id).await?;
        self.models.launch(uid, wanted).await.map_err(status)?;
        Ok(Response::new(LaunchModelResponse {}))
    }

    async fn await_model(
        &self,
        request: Request<PeerAwaitModelRequest>,
    ) -> Result<Response<AwaitModelResponse>, Status> {
        let PeerAwaitModelRequest {
            asking,
            request: wanted,
        } = request.get_ref();
        let wanted = *wanted.as_ref().ok_or_else(missing)?;
        let uid = self.behalf(&request, asking.as_ref(), wanted.job_id).await?;
        let asker = Caller {
            uid: Some(uid),
            pid: None,
            roles: Roles::default(),
            via: Via::Munge,
        };
        let handle = self.mine(asker, wanted.job_id)?;
        // The user may have it; it is root over there who must be able to read the key on its way to him.
        let root = Caller {
            uid: Some(0),
            roles: Roles::all(),
            ..asker
        };
        awaited(&handle, &wanted, root).await.map(Response::new)
    }
}
