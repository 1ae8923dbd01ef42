//! An agent's TCP listeners over a catalog that a test fills, and the ways to call them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fake_nvml::Scenario;
use slurm_serve::catalog::Hub;
use slurm_serve::client::{AgentChannel, said};
use slurm_serve::config::{self, Config};
use slurm_serve::job::Jobs;
use slurm_serve::peers::Peers;
use slurm_serve::rpc::{self, Counts, Rooms};
use slurm_serve::serve::{Confine, Models, Ports, Store, World};
use slurm_serve::slurm::Slurm;
use slurm_serve::telemetry::{self, Telemetry};
use slurm_serve_proto::v1::catalog_client::CatalogClient;
use slurm_serve_proto::v1::{
    ListModelsRequest, Model, ModelState, WatchModelsRequest, WatchModelsResponse,
    watch_models_response::Event,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::WatchStream;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::pki::{Ca, write_private};

/// No wait is longer; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(60);

pub const PROXY: &str = "proxy-token-0123456789";
pub const READER: &str = "reader-token-0123456789";
pub const KEY: &str = "the-models-own-key";

pub async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {DEADLINE:?}"),
    }
}

/// A listener of each kind.
pub struct Site {
    pub folder: tempfile::TempDir,
    pub ca: Ca,
    pub hub: Arc<Hub>,
    pub rooms: Rooms,
    pub config: Config,
    pub tls_port: u16,
    pub plain_port: u16,
    serving: Vec<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Site {
    pub async fn start() -> Self {
        Self::with(|_| ()).await
    }

    /// With changes to its configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ca = Ca::new("a test's CA");
        ca.write(&at("ca.pem"));
        let (cert, key) = ca.sign(folder.path(), "server", &["localhost"], "n1");
        write_private(
            &at("tokens"),
            &format!("{PROXY} gateway proxy\n{READER} lists read\n"),
        );
        let mut config = Config::default();
        config.agent.run_dir = at("run");
        config.agent.state_dir = at("state");
        config.agent.node_name = "n1".into();
        config.agent.slurm_bin_dir = at("no-slurm");
        config.access.token_file = at("tokens");
        config.access.proxy.certificates = vec!["gateway.example".into()];
        config.access.read.certificates = vec!["lists.example".into()];
        config.agent.tls = config::Tls {
            listen: "unused".into(),
            cert,
            key,
            client_ca: at("ca.pem"),
        };
        let gpus = Scenario::with_gpus([fake_nvml::Gpu::h100_nvl(0)]);
        config.telemetry.nvml_library = fake_nvml::install(folder.path(), &gpus).unwrap();
        change(&mut config);

        let rooms = rooms(&config);
        let hub = rooms.models.world().hub.clone();
        hub.set(model());
        let (tls, plain) = (bind().await, bind().await);
        let ports = (port(&tls), port(&plain));
        let (for_tls, for_plain) = ((rooms.clone(), config.clone()), (rooms.clone(), config.clone()));
        let never = std::future::pending;
        let serving = vec![
            tokio::spawn(async move {
                let (rooms, config) = for_tls;
                rpc::serve_tls(rooms, tls, &config.agent.tls, &config.access, never()).await
            }),
            tokio::spawn(async move {
                let (rooms, config) = for_plain;
                rpc::serve_tcp(rooms, plain, &config.access, never()).await
            }),
        ];
        let site = Self {
            folder,
            ca,
            hub,
            rooms,
            config,
            tls_port: ports.0,
            plain_port: ports.1,
            serving,
        };
        // From here on its files have been read.
        let mut health = HealthClient::new(site.channel(&site.client("")));
        in_time("health", health.check(HealthCheckRequest::default()))
            .await
            .unwrap();
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client's settings with this token; none if it is empty.
    pub fn client(&self, token: &str) -> config::Client {
        let mut client = config::Client {
            ca_file: self.path("ca.pem"),
            ..config::Client::default()
        };
        if !token.is_empty() {
            client.token_file = self.path(&format!("of-{token}"));
            write_private(&client.token_file, token);
        }
        client
    }

    /// The same with a certificate in place of a token.
    pub fn client_with(&self, (cert, key): (PathBuf, PathBuf)) -> config::Client {
        config::Client {
            client_cert: cert,
            client_key: key,
            ..self.client("")
        }
    }

    pub fn channel(&self, client: &config::Client) -> AgentChannel {
        channel(&format!("https://localhost:{}", self.tls_port), client)
    }

    pub fn catalog(&self, client: &config::Client) -> CatalogClient<AgentChannel> {
        CatalogClient::new(self.channel(client))
    }

    pub async fn list(&self, client: &config::Client) -> Result<Vec<Model>, Status> {
        list(self.catalog(client)).await
    }

    /// Why it may not list.
    pub async fn refusal(&self, client: &config::Client) -> (Code, String) {
        let status = self.list(client).await.unwrap_err();
        (status.code(), said(&status))
    }
}

pub fn channel(address: &str, client: &config::Client) -> AgentChannel {
    AgentChannel::at("n1", address, Duration::from_secs(10), client).unwrap()
}

pub async fn list(mut catalog: CatalogClient<AgentChannel>) -> Result<Vec<Model>, Status> {
    let request = ListModelsRequest::default();
    let answer = in_time("the list", catalog.list_models(request)).await?;
    Ok(answer.into_inner().models)
}

/// A stream that is open for as long as the first of the two lives.
pub async fn watch(
    mut catalog: CatalogClient<AgentChannel>,
) -> Result<(tokio::sync::watch::Sender<u64>, Streaming<WatchModelsResponse>), Status> {
    let (acks, acked) = tokio::sync::watch::channel(0);
    let acked = tokio_stream::StreamExt::map(WatchStream::new(acked), |acked_revision| WatchModelsRequest {
        acked_revision,
    });
    let answer = in_time("the stream", catalog.watch_models(acked)).await?;
    Ok((acks, answer.into_inner()))
}

/// The models of a stream's snapshot.
pub async fn snapshot(stream: &mut Streaming<WatchModelsResponse>) -> Vec<Model> {
    let first = in_time("the snapshot", stream.message()).await.unwrap();
    match first.and_then(|message| message.event) {
        Some(Event::Snapshot(snapshot)) => snapshot.models,
        other => panic!("no snapshot: {other:?}"),
    }
}

pub fn model() -> Model {
    Model {
        name: "tiny".into(),
        generation: "7.0.1-a".into(),
        owner: "ada".into(),
        owner_uid: 4242,
        job_id: 7,
        state: ModelState::Ready.into(),
        published: true,
        base_url: "http://127.0.0.1:1/v1".into(),
        key: KEY.into(),
        log_path: "/home/ada/serve-7.log".into(),
        ..Model::default()
    }
}

fn rooms(config: &Config) -> Rooms {
    let slurm = Slurm::new(&config.agent);
    let world = Arc::new(World {
        confine: Confine::limits(),
        slurm: slurm.clone(),
        node: "n1".into(),
        address: "127.0.0.1".into(),
        program: Path::new("/nonexistent").into(),
        hub: Hub::new(config.agent.max_watchers),
        store: Store::open(&config.agent.state_dir, &config.agent.run_dir).unwrap(),
        ports: Arc::new(Ports::new(&config.agent)),
        end_budget: Duration::from_secs(27),
        config: config.agent.clone(),
    });
    let jobs = Arc::new(Jobs::default());
    let models = Models::new(world, jobs.clone());
    models.recover();
    let place = telemetry::Place {
        node: "n1".into(),
        cluster: tokio::sync::watch::channel("lab".to_owned()).1,
        program: Path::new(env!("CARGO_BIN_EXE_slurm-serve")).into(),
        counts: Counts::default(),
        max_watchers: config.agent.max_watchers,
    };
    Rooms {
        jobs,
        peers: Arc::new(Peers::new("n1", &slurm, &config.agent)),
        models,
        telemetry: Telemetry::start(place, &config.telemetry),
        counts: Counts::default(),
        instance: "one".into(),
    }
}

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}
