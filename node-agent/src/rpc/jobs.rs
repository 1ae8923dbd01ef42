//! `Jobs`: what a user may ask of his jobs' models.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use slurm_serve_proto::v1::jobs_server::Jobs;
use slurm_serve_proto::v1::*;
use tonic::{Request, Response, Status};

use super::caller::Via;
use super::show::show;
use super::{Caller, Rooms};
use crate::serve::{Handle, View};

/// The longest a call of AwaitModel may last.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl Rooms {
    /// The job's model, if it is the caller's; an admin's eyes see all. Others learn nothing, not even that it exists.
    pub(super) fn mine(&self, caller: Caller, job_id: u32) -> Result<Handle, Status> {
        let handle = self.models.get(job_id).filter(|handle| {
            let view = handle.view.borrow();
            caller.owns(&view.model)
        });
        handle.ok_or_else(|| {
            Status::not_found(format!(
                "job {job_id} serves nothing on this node, or it is not yours"
            ))
        })
    }
}

/// The next change of a model, as `viewer` may see it.
pub(super) async fn awaited(
    handle: &Handle,
    wanted: &AwaitModelRequest,
    viewer: Caller,
) -> Result<AwaitModelResponse, Status> {
    let wait = match wanted.wait_ms {
        0 => Duration::from_secs(1),
        ms => Duration::from_millis(ms.into()).min(MAX_WAIT),
    };
    let mut view = handle.view.clone();
    let news = view.wait_for(|view| view.revision != wanted.seen_revision);
    let _ = tokio::time::timeout(wait, news).await;
    let View {
        revision,
        model,
        job_ending,
        log_note,
        ..
    } = view.borrow().clone();
    let model = Some(show(model, viewer).await?);
    Ok(AwaitModelResponse {
        revision,
        model,
        job_ending,
        note: log_note,
    })
}

#[tonic::async_trait]
impl Jobs for Rooms {
    async fn get_model(&self, request: Request<GetModelRequest>) -> Result<Response<Model>, Status> {
        let caller = Caller::of(&request)?;
        let handle = self.mine(caller, request.get_ref().job_id)?;
        let model = handle.view.borrow().model.clone();
        Ok(Response::new(show(model, caller).await?))
    }

    async fn await_model(
        &self,
        request: Request<AwaitModelRequest>,
    ) -> Result<Response<AwaitModelResponse>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = request.into_inner();
        let handle = match self.mine(caller, wanted.job_id) {
            Ok(handle) => handle,
            // On another node of the job, if one of its tasks here has opened it.
            Err(not_here) if caller.via == Via::Socket => {
                let there = self.peers.await_model(caller.user()?, wanted).await;
                return there.unwrap_or(Err(not_here)).map(Response::new);
            }
            Err(not_here) => return Err(not_here),
        };
        awaited(&handle, &wanted, caller).await.map(Response::new)
    }

    type StreamLogStream = Pin<Box<dyn Stream<Item = Result<LogChunk, Status>> + Send>>;

    async fn stream_log(
        &self,
        request: Request<StreamLogRequest>,
    ) -> Result<Response<Self::StreamLogStream>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = request.into_inner();
        let log = self.mine(caller, wanted.job_id)?.log;
        let start = match wanted.tail_lines {
            0 => 0,
            count => log.start_of_last(usize::try_from(count).unwrap_or(usize::MAX)),
        };
        let stream =
            futures_util::stream::unfold((log, start, false), move |(log, mut from, done)| async move {
                if done {
                    return None;
                }
                let mut changes = log.changes();
                loop {
                    changes.mark_unchanged();
                    let part = log.read(from);
                    let last = part.closed || !wanted.follow;
                    if !part.lines.is_empty() || last {
                        from = part.next;
                        let chunk = LogChunk {
                            lines: part.lines,
                            dropped: part.dropped,
                        };
                        return Some((Ok(chunk), (log, from, last)));
                    }
                    if changes.changed().await.is_err() {
                        return None;
                    }
                }
            });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn stop_model(
        &self,
        request: Request<StopModelRequest>,
    ) -> Result<Response<StopModelResponse>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = request.get_ref().job_id;
        self.mine(caller, job_id)?;
        self.models.stop(job_id, Cause::Stopped).await;
        Ok(Response::new(StopModelResponse {}))
    }
}
