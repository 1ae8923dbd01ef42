//! `Runner`: the runner inside the job. Unix socket only.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use slurm_serve_proto::v1::runner_message::Message as Said;
use slurm_serve_proto::v1::runner_server::Runner;
use slurm_serve_proto::v1::*;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Caller, Rooms, measure};
use crate::serve::{Attach, AttachRefused, Handle, Known, Message, is_in_job};

/// A runner says who it is at once, or is not one.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

#[tonic::async_trait]
impl Runner for Rooms {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AgentMessage, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<RunnerMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let caller = Caller::of(&request)?;
        let mut words = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, words.next()).await;
        let Ok(Some(Ok(RunnerMessage {
            message: Some(Said::Hello(mut hello)),
        }))) = first
        else {
            return Err(Status::invalid_argument(
                "the first message must be `hello`, within 5 s",
            ));
        };
        let handle = self.models.by_generation(hello.job_id, &hello.generation);
        let handle = handle
            .ok_or_else(|| Status::not_found(format!("no launch {} is known here", hello.generation)))?;
        let process = prove(caller, &handle)?;
        hello.facts = hello.facts.map(measure::cut);

        let (outbound, stream) = mpsc::channel(16);
        let (reply, answer) = oneshot::channel();
        let attach = Attach {
            hello,
            process,
            outbound,
            reply,
        };
        let sent = handle.messages.send(Message::Attach(Box::new(attach))).await;
        let answer = match sent {
            Ok(()) => answer.await.unwrap_or(Err(AttachRefused::Over)),
            Err(_) => Err(AttachRefused::Over),
        };
        let connection = answer.map_err(refusal)?;
        tokio::spawn(async move {
            let mut pace = measure::Pace::new();
            while let Some(Ok(RunnerMessage { message: Some(said) })) = words.next().await {
                match said {
                    Said::Facts(facts) => {
                        if handle
                            .messages
                            .send(Message::Facts(connection, Box::new(measure::cut(facts))))
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                    Said::Log(log) => handle.log.push(log.lines, log.dropped),
                    Said::Hello(_) => break,
                }
                pace.heard().await;
            }
            let _ = handle.messages.send(Message::Detached(connection)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream).map(Ok))))
    }
}

/// The user's process, inside the job's step. (Nonce and secret are the model's own to judge.)
pub(super) fn prove(caller: Caller, handle: &Handle) -> Result<Known, Status> {
    if caller.uid != Some(handle.launch.uid) {
        return Err(Status::permission_denied(format!(
            "job {} is not yours",
            handle.launch.job_id
        )));
    }
    let pid = caller
        .pid
        .ok_or_else(|| Status::permission_denied("the kernel does not say which process calls"))?;
    // Known first: should the process end meanwhile, another one of its pid is not taken for it.
    let known = Known::of(pid);
    if !is_in_job(pid, handle.launch.job_id) {
        return Err(Status::permission_denied(format!(
            "process {pid} is not in a step of job {}",
            handle.launch.job_id
        )));
    }
    known
        .filter(|known| known.is_alive())
        .ok_or_else(|| Status::permission_denied(format!("process {pid} has ended")))
}

fn refusal(why: AttachRefused) -> Status {
    match why {
        AttachRefused::Occupied => Status::already_exists("another runner is attached"),
        AttachRefused::Unproven => Status::permission_denied("neither nonce nor secret are right"),
        AttachRefused::Over => Status::not_found("this launch is over"),
    }
}
