//! Stands where an agent should: takes what its callers send, keeps their credentials, and answers with what is not true.

use std::net::SocketAddr;
use std::pin::Pin;

use anyhow::{Context, Result};
use slurm_serve_proto::MUNGE_METADATA;
use slurm_serve_proto::v1::jobs_server::{Jobs, JobsServer};
use slurm_serve_proto::v1::*;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

/// Serves `Jobs` on a port of all addresses, until it is killed. Each credential is printed, a line each.
pub async fn serve(port: u16) -> Result<()> {
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    let router = tonic::transport::Server::builder().add_service(JobsServer::new(Impostor));
    router
        .serve(address)
        .await
        .with_context(|| format!("port {port}"))
}

struct Impostor;

fn keep<T>(request: &Request<T>) {
    let credential = request.metadata().get(MUNGE_METADATA);
    println!(
        "{}",
        credential.and_then(|value| value.to_str().ok()).unwrap_or("none")
    );
}

#[tonic::async_trait]
impl Jobs for Impostor {
    async fn get_model(&self, request: Request<GetModelRequest>) -> Result<Response<Model>, Status> {
        keep(&request);
        Ok(Response::new(Model {
            base_url: "http://false.example/v1".into(),
            ..Model::default()
        }))
    }

    async fn await_model(
        &self,
        _: Request<AwaitModelRequest>,
    ) -> Result<Response<AwaitModelResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type StreamLogStream = Pin<Box<dyn Stream<Item = Result<LogChunk, Status>> + Send>>;

    async fn stream_log(
        &self,
        _: Request<StreamLogRequest>,
    ) -> Result<Response<Self::StreamLogStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stop_model(&self, _: Request<StopModelRequest>) -> Result<Response<StopModelResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}
