//! An agent that hands out one order and remembers what it was told.

use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slurm_serve::handover::{self, Wish};
use slurm_serve_proto::v1::agent_message::Message as ToRunner;
use slurm_serve_proto::v1::runner_message::Message as FromRunner;
use slurm_serve_proto::v1::runner_server::{Runner, RunnerServer};
use slurm_serve_proto::v1::{
    AgentMessage, LaunchOrder, Released, RunnerFacts, RunnerHello, RunnerMessage, RunnerPhase, Welcome,
};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

pub const NONCE: &str = "the-nonce";
pub const SECRET: &str = "the-secret";

/// The way to the runner that is attached, if one is.
type Mouth = Arc<Mutex<Option<mpsc::Sender<Result<AgentMessage, Status>>>>>;

/// What the agent was told, over all its lives.
#[derive(Default, Clone)]
pub struct Told {
    pub hellos: Vec<RunnerHello>,
    pub facts: Vec<RunnerFacts>,
    pub lines: Vec<String>,
    /// Ports of the listeners that were handed out, and of those that came back.
    pub handed: Vec<u16>,
    pub came_back: Vec<u16>,
}

impl Told {
    pub fn last(&self) -> RunnerFacts {
        self.facts.last().cloned().unwrap_or_default()
    }

    pub fn has_been(&self, phase: RunnerPhase) -> bool {
        self.facts.iter().any(|facts| facts.phase() == phase)
    }
}

/// How the agent behaves.
#[derive(Clone)]
pub struct Manners {
    pub order: LaunchOrder,
    /// Says Released as soon as the runner is LEAVING.
    pub releases: bool,
    /// Refuses every stream with this.
    pub refuses: Option<Status>,
    /// Has a listener to hand out.
    pub has_port: bool,
}

/// A running agent; dropping it breaks its streams, as its death would.
pub struct Agent {
    pub told: watch::Receiver<Told>,
    to_runner: Mouth,
    /// Its own, so that its death breaks everything at once, as a process's would.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Agent {
    /// Listens on `socket`, adding to what an earlier one was told.
    pub fn start(socket: &PathBuf, manners: Manners, told: &watch::Sender<Told>) -> Self {
        let _ = std::fs::remove_file(socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let listener = UnixListener::bind(socket).expect("the agent's socket");
        let ports = handover::beside(socket);
        let _ = std::fs::remove_file(&ports);
        let ports = UnixListener::bind(ports).expect("the ports' socket");
        drop(entered);
        runtime.spawn(hand_over(ports, manners.has_port, told.clone()));
        let to_runner = Arc::default();
        let service = Service {
            manners,
            told: told.clone(),
            to_runner: Arc::clone(&to_runner),
        };
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(RunnerServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .expect("served");
        });
        Self {
            told: told.subscribe(),
            to_runner,
            runtime: Some(runtime),
        }
    }

    pub async fn say(&self, message: ToRunner) {
        let sender = self
            .to_runner
            .lock()
            .expect("lock")
            .clone()
            .expect("a runner is attached");
        sender
            .send(Ok(AgentMessage {
                message: Some(message),
            }))
            .await
            .expect("said");
    }

    /// Waits until what was told satisfies `wanted`.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Told) -> bool) -> Told {
        let mut told = self.told.clone();
        match tokio::time::timeout(Duration::from_secs(30), told.wait_for(wanted)).await {
            Ok(told) => told.expect("the agent lives").clone(),
            Err(_) => panic!("waited for {what}; told so far: {:#?}", self.told.borrow().facts),
        }
    }

    pub async fn until_phase(&self, phase: RunnerPhase) -> RunnerFacts {
        let told = self.until(phase.as_str_name(), |told| told.has_been(phase)).await;
        told.facts
            .into_iter()
            .find(|facts| facts.phase() == phase)
            .expect("just seen")
    }

    /// As if killed.
    pub fn die(self) {}
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Hands a listener to whoever asks, and keeps none, so that a port is free when its runner is gone.
async fn hand_over(socket: UnixListener, has_port: bool, told: watch::Sender<Told>) {
    loop {
        let (stream, _) = socket.accept().await.expect("a connection");
        let (wish, claim, given) = handover::hear(&stream).await.expect("a request");
        let port = |listener: &TcpListener| listener.local_addr().expect("its address").port();
        let answer = match (wish, given) {
            _ if claim.secret != SECRET => Err("not the secret".to_owned()),
            (Wish::Take, _) if !has_port => Err("there is none".to_owned()),
            (Wish::Take, _) => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                told.send_modify(|told| told.handed.push(port(&listener)));
                Ok(Some(listener.into()))
            }
            (Wish::Give, given) => {
                let given = TcpListener::from(given.expect("a listener"));
                told.send_modify(|told| told.came_back.push(port(&given)));
                Ok(None)
            }
        };
        handover::answer(&stream, answer).await.expect("answered");
    }
}

struct Service {
    manners: Manners,
    told: watch::Sender<Told>,
    to_runner: Mouth,
}

#[tonic::async_trait]
impl Runner for Service {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AgentMessage, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<RunnerMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        if let Some(status) = &self.manners.refuses {
            return Err(status.clone());
        }
        let mut incoming = request.into_inner();
        let Some(RunnerMessage {
            message: Some(FromRunner::Hello(hello)),
        }) = incoming.message().await?
        else {
            return Err(Status::invalid_argument("a hello comes first"));
        };
        let (sender, receiver) = mpsc::channel(8);
        let first = hello.secret.is_empty();
        if (first && hello.nonce != NONCE) || (!first && hello.secret != SECRET) {
            return Err(Status::permission_denied("neither nonce nor secret"));
        }
        self.told.send_modify(|told| {
            told.facts.extend(hello.facts.clone());
            told.hellos.push(hello);
        });
        let say = |message| {
            Ok(AgentMessage {
                message: Some(message),
            })
        };
        let _ = sender
            .send(say(ToRunner::Welcome(Welcome {
                secret: SECRET.into(),
            })))
            .await;
        if first {
            let _ = sender
                .send(say(ToRunner::Order(self.manners.order.clone())))
                .await;
        }
        *self.to_runner.lock().expect("lock") = Some(sender.clone());
        let (told, releases) = (self.told.clone(), self.manners.releases);
        let to_runner = Arc::clone(&self.to_runner);
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                match message.message {
                    Some(FromRunner::Facts(facts)) => {
                        let leaving = facts.phase() == RunnerPhase::Leaving;
                        told.send_modify(|told| told.facts.push(facts));
                        if leaving && releases {
                            let _ = sender.send(say(ToRunner::Released(Released {}))).await;
                        }
                    }
                    Some(FromRunner::Log(log)) => told.send_modify(|told| told.lines.extend(log.lines)),
                    _ => {}
                }
            }
            // The end of the runner's side ends ours.
            to_runner.lock().expect("lock").take();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
