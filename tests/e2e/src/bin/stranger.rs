//! Speaks to an agent as nobody of the product's own would: somebody else's job, texts that no option can carry, a runner that is none, a
//! credential that was used already. The tests run it in a lab's nodes, as whatever user, and look at what the agent says.
//!
//! Prints one line for each answer, `OK …` or `CODE: message`, and exits 0 whatever the answer is.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use slurm_serve::client::AgentChannel;
use slurm_serve::munge;
use slurm_serve_proto::MUNGE_METADATA;
use slurm_serve_proto::v1::catalog_client::CatalogClient;
use slurm_serve_proto::v1::hooks_client::HooksClient;
use slurm_serve_proto::v1::jobs_client::JobsClient;
use slurm_serve_proto::v1::peers_client::PeersClient;
use slurm_serve_proto::v1::runner_client::RunnerClient;
use slurm_serve_proto::v1::runner_message::Message as Said;
use slurm_serve_proto::v1::*;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const SOCKET: &str = "/run/slurm-serve/agent.sock";
const LIST: &str = "/slurm_serve.v1.Catalog/ListModels";

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    call: Call,
}

#[derive(Subcommand)]
enum Call {
    /// Jobs.GetModel over the socket.
    Get { job: u32 },
    /// Jobs.AwaitModel.
    Await { job: u32 },
    /// Jobs.StreamLog, its first chunk.
    Log { job: u32 },
    /// Jobs.StopModel.
    Stop { job: u32 },
    /// Catalog.ListModels.
    List,
    /// Hooks.JobStarted for a job of `uid`, with options as JSON (`{"model": …, "args": …}`).
    Started { job: u32, uid: u32, options: String },
    /// Hooks.OpenModel with options as JSON.
    Open {
        job: u32,
        options: String,
        #[arg(default_value_t = 0)]
        restart_count: u32,
    },
    /// Hooks.LaunchModel with options, a recipe of the user's own and variables, as JSON.
    Launch {
        job: u32,
        options: String,
        #[arg(default_value = "")]
        recipe: String,
        #[arg(default_value = "{}")]
        env: String,
    },
    /// Hooks.JobEnding.
    Ending { job: u32 },
    /// Hooks.JobEnded.
    Ended { job: u32 },
    /// Runner.Attach: claims to be the runner of this launch.
    Attach {
        job: u32,
        generation: String,
        #[arg(default_value = "")]
        nonce: String,
        #[arg(default_value = "")]
        secret: String,
    },
    /// Catalog.ListModels over TCP with a credential of this kind.
    Tcp {
        address: String,
        node: String,
        credential: Credential,
    },
    /// Jobs.GetModel over TCP with a credential that was made elsewhere; without a job Catalog.ListModels.
    Replay {
        address: String,
        credential: String,
        job: Option<u32>,
    },
    /// Stands where an agent should, and prints the credentials that its callers send.
    Impostor { port: u16 },
    /// Jobs.GetModel over TCP, as the product's own client does it.
    TcpGet { address: String, node: String, job: u32 },
    /// Peers.AwaitModel over TCP for `uid` on `asking`, as an agent does it.
    Peer {
        address: String,
        node: String,
        job: u32,
        uid: u32,
        asking: String,
    },
    /// Hooks.OpenModel for `calls` jobs that do not exist, all at once; tells how many answers there were of each code.
    Flood { calls: u32 },
    /// Holds as many connections to the socket as it can get of `count`, until it is killed; tells how many those are.
    Crowd { count: usize, socket: String },
    /// Tries to have this TCP port, again and again for so long, by every way that a user has; once it is had, says so and answers every request
    /// with `stolen`.
    Grab { port: u16, seconds: u64 },
    /// grpc.health.v1 over TCP, without any credential.
    Health { address: String },
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Credential {
    Good,
    None,
    Replayed,
    OtherNode,
    OtherMethod,
    Rubbish,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let channel = AgentChannel::unix(Path::new(SOCKET))?;
    let mut jobs = JobsClient::new(channel.clone());
    let mut hooks = HooksClient::new(channel.clone());
    match Cli::parse().call {
        Call::Get { job } => {
            let answer = jobs.get_model(GetModelRequest { job_id: job }).await;
            tell(answer, |model| shown(&model));
        }
        Call::Await { job } => {
            let request = AwaitModelRequest {
                job_id: job,
                ..Default::default()
            };
            tell(jobs.await_model(request).await, |answer| {
                shown(&answer.model.unwrap_or_default())
            });
        }
        Call::Log { job } => {
            let request = StreamLogRequest {
                job_id: job,
                tail_lines: 0,
                follow: false,
            };
            let lines = match jobs.stream_log(request).await {
                Ok(stream) => stream.into_inner().message().await,
                Err(status) => Err(status),
            };
            tell(lines.map(tonic::Response::new), |chunk| {
                chunk.unwrap_or_default().lines.join(" | ")
            });
        }
        Call::Stop { job } => tell(jobs.stop_model(StopModelRequest { job_id: job }).await, nothing),
        Call::List => {
            let answer = CatalogClient::new(channel)
                .list_models(ListModelsRequest::default())
                .await;
            tell(answer, list);
        }
        Call::Started { job, uid, options } => {
            let request = JobStartedRequest {
                job_id: job,
                uid,
                gid: uid,
                cluster: "lab".into(),
                node_list: host()?,
                work_dir: "/tmp".into(),
                options: Some(self::options(&options)?),
                ..Default::default()
            };
            tell(hooks.job_started(request).await, nothing);
        }
        Call::Open {
            job,
            options,
            restart_count,
        } => {
            let request = OpenModelRequest {
                job_id: job,
                restart_count,
                options: Some(self::options(&options)?),
                ..Default::default()
            };
            tell(hooks.open_model(request).await, |answer| format!("{answer:?}"));
        }
        Call::Launch {
            job,
            options,
            recipe,
            env,
        } => {
            let env: HashMap<String, String> = serde_json::from_str(&env).context("the variables")?;
            let request = LaunchModelRequest {
                job_id: job,
                options: Some(self::options(&options)?),
                env,
                user_recipe: recipe,
                ..Default::default()
            };
            tell(hooks.launch_model(request).await, nothing);
        }
        Call::Ending { job } => {
            let request = JobEndingRequest {
                job_id: job,
                wait_status: 0,
            };
            tell(hooks.job_ending(request).await, nothing);
        }
        Call::Ended { job } => tell(hooks.job_ended(JobEndedRequest { job_id: job }).await, nothing),
        Call::Attach {
            job,
            generation,
            nonce,
            secret,
        } => {
            let hello = RunnerHello {
                job_id: job,
                generation,
                nonce,
                secret,
                pid: std::process::id(),
                ..Default::default()
            };
            let hello = RunnerMessage {
                message: Some(Said::Hello(hello)),
            };
            let answer = RunnerClient::new(channel).attach(tokio_stream::once(hello)).await;
            tell(answer, |_| "attached".into());
        }
        Call::Tcp {
            address,
            node,
            credential,
        } => tcp(&address, &node, credential).await?,
        Call::Replay {
            address,
            credential,
            job,
        } => replay(&address, &credential, job).await?,
        Call::Impostor { port } => serve_e2e::impostor::serve(port).await?,
        Call::TcpGet { address, node, job } => {
            let channel = AgentChannel::tcp(&node, &address, Duration::from_secs(5))?;
            let answer = JobsClient::new(channel)
                .get_model(GetModelRequest { job_id: job })
                .await;
            tell(answer, |model| shown(&model));
        }
        Call::Peer {
            address,
            node,
            job,
            uid,
            asking,
        } => {
            let channel = AgentChannel::tcp(&node, &address, Duration::from_secs(5))?;
            let request = PeerAwaitModelRequest {
                asking: Some(Asking { uid, node: asking }),
                request: Some(AwaitModelRequest {
                    job_id: job,
                    ..Default::default()
                }),
            };
            tell(PeersClient::new(channel).await_model(request).await, |answer| {
                shown(&answer.model.unwrap_or_default())
            });
        }
        Call::Flood { calls } => flood(calls).await?,
        Call::Crowd { count, socket } => match crowd(count, &socket)? {},
        Call::Grab { port, seconds } => grab(port, Duration::from_secs(seconds))?,
        Call::Health { address } => {
            let mut health = tonic_health::pb::health_client::HealthClient::new(connect(&address).await?);
            let request = tonic_health::pb::HealthCheckRequest::default();
            tell(health.check(request).await, |answer| {
                format!("{:?}", answer.status())
            });
        }
    }
    Ok(())
}

/// Asks by hand, so that any credential can be sent, and the proof in the answer is looked for but not demanded.
async fn tcp(address: &str, node: &str, kind: Credential) -> Result<()> {
    let (method, node) = match kind {
        Credential::OtherMethod => ("/slurm_serve.v1.Jobs/StopModel", node),
        Credential::OtherNode => (LIST, "another-node"),
        _ => (LIST, node),
    };
    let payload = munge::call_payload(method, node, &munge::nonce());
    let credential = match kind {
        Credential::None => None,
        Credential::Rubbish => Some("MUNGE:rubbish:".to_owned()),
        _ => Some(munge::encode(payload, Some(0)).await?),
    };
    let mut catalog = CatalogClient::new(connect(address).await?);
    for _ in 0..if kind == Credential::Replayed { 2 } else { 1 } {
        let mut request = Request::new(ListModelsRequest::default());
        if let Some(credential) = &credential {
            request.metadata_mut().insert(MUNGE_METADATA, credential.parse()?);
        }
        tell(catalog.list_models(request).await, list);
    }
    Ok(())
}

async fn replay(address: &str, credential: &str, job: Option<u32>) -> Result<()> {
    let channel = connect(address).await?;
    let credential: tonic::metadata::MetadataValue<_> = credential.parse()?;
    if let Some(job_id) = job {
        let mut request = Request::new(GetModelRequest { job_id });
        request.metadata_mut().insert(MUNGE_METADATA, credential);
        tell(JobsClient::new(channel).get_model(request).await, |model| {
            shown(&model)
        });
    } else {
        let mut request = Request::new(ListModelsRequest::default());
        request.metadata_mut().insert(MUNGE_METADATA, credential);
        tell(CatalogClient::new(channel).list_models(request).await, list);
    }
    Ok(())
}

/// Over several connections: one holds no more calls at once than the agent allows.
async fn flood(calls: u32) -> Result<()> {
    let channels: Vec<_> = (0..16)
        .map(|_| AgentChannel::unix(Path::new(SOCKET)))
        .collect::<Result<_, _>>()?;
    let mut asked = tokio::task::JoinSet::new();
    for (job_id, channel) in (3_000_000..3_000_000 + calls).zip(channels.iter().cycle()) {
        let mut hooks = HooksClient::new(channel.clone());
        let request = OpenModelRequest {
            job_id,
            ..Default::default()
        };
        asked.spawn(async move {
            hooks
                .open_model(request)
                .await
                .map_or_else(|s| code(s.code()), |_| "OK".into())
        });
    }
    let mut answers = std::collections::BTreeMap::<String, u32>::new();
    while let Some(answer) = asked.join_next().await {
        *answers.entry(answer?).or_default() += 1;
    }
    println!("{answers:?}");
    Ok(())
}

/// Those that the agent closes at once do not count.
fn crowd(count: usize, socket: &str) -> Result<std::convert::Infallible> {
    use std::io::Read;
    let mut held = Vec::new();
    for _ in 0..count {
        match std::os::unix::net::UnixStream::connect(socket) {
            Ok(stream) => held.push(stream),
            Err(_) => break,
        }
    }
    for stream in &held {
        stream.set_read_timeout(Some(std::time::Duration::from_millis(1)))?;
    }
    held.retain_mut(|stream| !matches!(stream.read(&mut [0; 1]), Ok(0)));
    println!("{}", held.len());
    loop {
        std::thread::park();
    }
}

fn grab(port: u16, within: Duration) -> Result<()> {
    let until = Instant::now() + within;
    println!("trying");
    let listener = loop {
        if let Some(listener) = [(false, false), (true, false), (true, true)]
            .into_iter()
            .find_map(|(address, port_too)| bind(port, address, port_too).ok())
        {
            break listener;
        }
        if Instant::now() >= until {
            println!("never");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    println!("bound");
    listener.set_nonblocking(true)?;
    while Instant::now() < until {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                let _ = stream.read(&mut [0; 65536]);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nstolen");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok(())
}

/// Listens on all addresses, with SO_REUSEADDR and SO_REUSEPORT as told.
fn bind(port: u16, reuse_address: bool, reuse_port: bool) -> Result<TcpListener> {
    use nix::sys::socket::*;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    setsockopt(&socket, sockopt::ReuseAddr, &reuse_address)?;
    setsockopt(&socket, sockopt::ReusePort, &reuse_port)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))?;
    listen(&socket, Backlog::new(64)?)?;
    Ok(TcpListener::from(socket))
}

async fn connect(address: &str) -> Result<Channel> {
    let endpoint = Endpoint::try_from(format!("http://{address}"))?;
    endpoint.connect().await.with_context(|| address.to_owned())
}

fn options(text: &str) -> Result<ServeOptions> {
    let Value::Object(given) = serde_json::from_str(text).context("the options")? else {
        bail!("options are an object");
    };
    let mut options = ServeOptions::default();
    for (name, value) in given {
        let value = value.as_str().context("an option is text")?.to_owned();
        match name.as_str() {
            "model" => options.model = value,
            "args" => options.args = value,
            "wait" => options.wait = value,
            "publish" => options.publish = value,
            "name" => options.name = value,
            "env" => options.env = value,
            "on_failure" => options.on_failure = value,
            other => bail!("there is no option {other}"),
        }
    }
    Ok(options)
}

/// This node's name, which is Slurm's name of it in a lab.
fn host() -> Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

fn nothing<T>(_: T) -> String {
    String::new()
}

fn list(answer: ListModelsResponse) -> String {
    let models: Vec<String> = answer.models.iter().map(shown).collect();
    format!("[{}]", models.join(", "))
}

/// What matters of a model to somebody who should not see all of it.
fn shown(model: &Model) -> String {
    json!({
        "name": model.name,
        "owner": model.owner,
        "state": model.state().as_str_name(),
        "generation": model.generation,
        "key": model.key,
        "log_path": model.log_path,
        "progress": model.progress,
    })
    .to_string()
}

fn tell<T>(answer: Result<tonic::Response<T>, Status>, show: impl FnOnce(T) -> String) {
    match answer {
        Ok(answer) => println!("{}", format!("OK {}", show(answer.into_inner())).trim_end()),
        Err(status) => println!("{}: {}", code(status.code()), status.message()),
    }
}

/// The code as the contract spells it.
fn code(code: Code) -> String {
    let mut text = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_uppercase());
    }
    text
}
