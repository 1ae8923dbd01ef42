//! The gRPC listeners.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use slurm_serve_proto::FILE_DESCRIPTOR_SET;
use slurm_serve_proto::v1::catalog_server::CatalogServer;
use slurm_serve_proto::v1::hooks_server::HooksServer;
use slurm_serve_proto::v1::jobs_server::JobsServer;
use slurm_serve_proto::v1::peers_server::PeersServer;
use slurm_serve_proto::v1::runner_server::RunnerServer;
use slurm_serve_proto::v1::telemetry_server::TelemetryServer;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tonic::service::Routes;
use tonic::transport::Server;

use super::Rooms;
use super::gate::GateLayer;
use super::munge_gate::MungeGate;
use super::refusals::Refusals;
use super::{places, tls};
use crate::config::{Access, Tls};

/// What a caller may send at once: a launch with its environment and a recipe.
const MAX_MESSAGE: usize = 1 << 20;

/// Where a request is a number or two.
const MAX_QUESTION: usize = 16 << 10;

/// Streams of one connection at once. Over TCP an agent asks for all tasks of its node by one connection.
const STREAMS: u32 = 64;

/// Calls of one connection to the Unix socket that are being read, at most: nobody of the product's own makes more than two at a time, and
/// each may be [`MAX_MESSAGE`] in memory.
const CALLS: usize = 4;

/// A call that has not been answered by then was never sent to its end. Answers that stream count to their beginning.
const ANSWERED: Duration = Duration::from_secs(60);

/// Serves the Unix socket until `end`.
pub async fn serve_unix(rooms: Rooms, socket: &Path, end: impl Future<Output = ()>) -> anyhow::Result<()> {
    let listener = bind_unix(socket).await?;
    crate::service_manager::ready();
    let counts = rooms.counts.clone();
    let routes = common(&rooms)
        .await?
        .add_service(HooksServer::new(rooms.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(RunnerServer::new(rooms).max_decoding_message_size(MAX_MESSAGE));
    let server = Server::builder()
        .max_concurrent_streams(Some(STREAMS))
        .concurrency_limit_per_connection(CALLS)
        .timeout(ANSWERED)
        .layer(counts)
        .add_routes(routes);
    server
        .serve_with_incoming_shutdown(places::of_users(listener), end)
        .await
        .context("the Unix socket")
}

/// Serves TCP, behind munge, until `end`.
pub async fn serve_tcp(
    rooms: Rooms,
    listener: TcpListener,
    access: &Access,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let gate = MungeGate::new(&rooms.models.world().node, access);
    let counts = rooms.counts.clone();
    let routes = common(&rooms)
        .await?
        .add_service(PeersServer::new(rooms).max_decoding_message_size(MAX_MESSAGE));
    over_tcp()
        .layer(counts)
        .layer(GateLayer::new(gate, Arc::default()))
        .add_routes(routes)
        .serve_with_incoming_shutdown(places::of_addresses(listener), end)
        .await
        .context("TCP")
}

/// Serves TCP with TLS, behind tokens and certificates, until `end`.
pub async fn serve_tls(
    rooms: Rooms,
    listener: TcpListener,
    tls: &Tls,
    access: &Access,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let wrong = |why: String| anyhow::anyhow!(why);
    let gate = tls::TlsGate::new(access).map_err(wrong)?;
    let server = Arc::new(tls::server(tls).map_err(wrong)?);
    let refusals = Arc::new(Refusals::default());
    over_tcp()
        .layer(rooms.counts.clone())
        .layer(GateLayer::new(gate, refusals.clone()))
        .add_routes(common(&rooms).await?)
        .serve_with_incoming_shutdown(tls::connections(listener, server, refusals), end)
        .await
        .context("TCP with TLS")
}

/// A TCP port; `setting` names it.
pub async fn bind_tcp(setting: &str, listen: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(listen).await;
    listener.with_context(|| format!("{listen} cannot be bound; set {setting}"))
}

fn over_tcp() -> Server {
    Server::builder()
        .max_concurrent_streams(Some(STREAMS))
        .timeout(ANSWERED)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}

async fn common(rooms: &Rooms) -> anyhow::Result<Routes> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<CatalogServer<Rooms>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let jobs = JobsServer::new(rooms.clone()).max_decoding_message_size(MAX_QUESTION);
    let catalog = CatalogServer::new(rooms.clone()).max_decoding_message_size(MAX_QUESTION);
    let telemetry = TelemetryServer::new(rooms.clone()).max_decoding_message_size(MAX_QUESTION);
    let mut routes = Routes::builder();
    routes
        .add_service(jobs)
        .add_service(catalog)
        .add_service(telemetry)
        .add_service(health_service.max_decoding_message_size(MAX_QUESTION))
        .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_QUESTION))
        // What grpcurl of some distributions still asks for.
        .add_service(
            reflection()
                .build_v1alpha()?
                .max_decoding_message_size(MAX_QUESTION),
        );
    Ok(routes.routes())
}

/// A socket that everybody may connect to (who may do what is decided by who it is), in place of one that nobody serves any more.
pub(super) async fn bind_unix(socket: &Path) -> anyhow::Result<UnixListener> {
    let shown = socket.display();
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder, open).with_context(|| format!("{}", folder.display()))?;
    }
    if UnixStream::connect(socket).await.is_ok() {
        bail!("{shown}: another agent serves it; stop that one first");
    }
    // Bound beside and renamed, so that a client never finds a socket that nobody listens on.
    let mut fresh = socket.as_os_str().to_owned();
    fresh.push(".new");
    let _ = std::fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh).with_context(|| format!("{shown} cannot be bound"))?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o666))
        .with_context(|| format!("{shown}"))?;
    std::fs::rename(&fresh, socket).with_context(|| format!("{shown} cannot be put in place"))?;
    Ok(listener)
}
