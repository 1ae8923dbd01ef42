//! The line to the agent: one `Runner.Attach` stream, made again for as long as the runner lives.
//!
//! ```text
//!           nonce             Welcome, order            stream breaks (agent restarted)
//! Connecting ─────> Attached ───────────────> Ordered ──────────────────────────────> Connecting, with the secret
//!     │ no order within FIRST_ORDER, or the nonce is refused                               │ NOT_FOUND: the job is over
//!     └────────────> Event::Over                                    Event::Over <──────────┘
//! ```
//!
//! What the agent should know is one value, [`RunnerFacts`]: the newest is sent, whole, on each change that matters at once and else a
//! few times a second. A new stream begins with it, so nothing is lost with an old one.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slurm_serve_proto::v1::agent_message::Message as FromAgent;
use slurm_serve_proto::v1::runner_client::RunnerClient;
use slurm_serve_proto::v1::runner_message::Message as ToAgent;
use slurm_serve_proto::v1::{
    AgentMessage, LaunchOrder, LogLines, RunnerFacts, RunnerHello, RunnerMessage, RunnerPhase, StopOrder,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::announcement::Announcement;
use super::guard::Counts;
use super::log::ForAgent;
use crate::client::AgentChannel;
use crate::clock::next_second;
use crate::handover::{self, Claim};

/// An agent that was just restarted is given this long to take a new runner in.
const FIRST_ORDER: Duration = Duration::from_secs(60);
/// Between two attempts: from here, doubling, up to there.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// An agent that takes the stream and then says nothing is tried again.
const ATTACHING: Duration = Duration::from_secs(10);
/// How often what need not be told at once is told.
const TICK: Duration = Duration::from_millis(200);
/// Every so many ticks, once a second, the facts are told, changed or not: a runner that says nothing is frozen.
const ALIVE: u32 = 5;
/// Lines in one message.
const BATCH: usize = 100;

/// What comes from the agent.
#[derive(Debug)]
pub enum Event {
    /// What to serve. Comes once.
    Order(Box<Order>),
    /// Every catalog has let go.
    Released,
    /// Somebody wants the model to end.
    Stop(StopOrder),
    /// The agent will not have this runner (any more): one line. Nothing comes after it.
    Over(String),
}

/// What to serve, and where.
#[derive(Debug)]
pub struct Order {
    /// What.
    pub launch: LaunchOrder,
    /// The listener that the agent made for it; or why there is none, in one line.
    pub listener: Result<TcpListener, String>,
}

/// The runner's end of the line.
pub struct Link {
    /// What the agent should know.
    pub facts: watch::Sender<RunnerFacts>,
    /// What the agent says.
    pub events: mpsc::Receiver<Event>,
    /// Whether the agent is there.
    pub connected: watch::Receiver<bool>,
    /// The guard's counters, once there is a guard: they are part of the facts.
    pub counts: watch::Sender<Option<Arc<Counts>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Link {
    /// Begins to connect. The lines of `log` go the same way.
    pub fn open(announcement: Announcement, log: ForAgent) -> Self {
        let facts = watch::Sender::new(RunnerFacts::default());
        let counts = watch::Sender::new(None);
        let (events_in, events) = mpsc::channel(16);
        let (connected_in, connected) = watch::channel(false);
        let line = Line {
            announcement,
            secret: String::new(),
            ordered: false,
            listener: None,
            facts: facts.subscribe(),
            counts: counts.subscribe(),
            events: events_in,
            connected: connected_in,
            log,
        };
        let task = tokio::spawn(line.keep());
        Self {
            facts,
            events,
            connected,
            counts,
            task,
        }
    }

    /// Ends the line after the last facts, which must say DONE, have gone out; waits at most `within`.
    pub async fn finish(self, within: Duration) {
        let _ = timeout(within, self.task).await;
    }
}

/// Why a stream is over.
enum Ended {
    /// DONE was said, and taken.
    Done,
    /// To be made again.
    Broken,
    /// Not to be made again.
    Refused(String),
}

struct Line {
    announcement: Announcement,
    secret: String,
    ordered: bool,
    /// Of the guard's port, for an agent that comes after the one that made it.
    listener: Option<TcpListener>,
    facts: watch::Receiver<RunnerFacts>,
    counts: watch::Receiver<Option<Arc<Counts>>>,
    events: mpsc::Sender<Event>,
    connected: watch::Sender<bool>,
    log: ForAgent,
}

impl Line {
    async fn keep(mut self) {
        let socket = PathBuf::from(&self.announcement.socket);
        let give_up = Instant::now() + FIRST_ORDER;
        let mut pause = BACK_OFF.0;
        loop {
            let ended = match AgentChannel::unix(&socket) {
                Ok(channel) => self.attach(RunnerClient::new(channel)).await,
                Err(e) => Ended::Refused(e.to_string()),
            };
            let was_connected = self.connected.send_replace(false);
            match ended {
                Ended::Done => return,
                Ended::Refused(why) => return self.over(why).await,
                Ended::Broken if !self.ordered && Instant::now() >= give_up => {
                    let socket = socket.display();
                    let waited = FIRST_ORDER.as_secs();
                    let why =
                        format!("no order from the agent at {socket} within {waited} s; is it running?");
                    return self.over(why).await;
                }
                Ended::Broken => {}
            }
            pause = if was_connected {
                BACK_OFF.0
            } else {
                (pause * 2).min(BACK_OFF.1)
            };
            sleep(pause).await;
        }
    }

    async fn over(&self, why: String) {
        let _ = self.events.send(Event::Over(why)).await;
    }

    /// One stream, from its first message to its end.
    async fn attach(&mut self, mut client: RunnerClient<AgentChannel>) -> Ended {
        let (out, outgoing) = mpsc::channel(8);
        let mut told = self.now();
        let hello = self.hello(&told);
        if out.send(message(ToAgent::Hello(hello))).await.is_err() {
            return Ended::Broken;
        }
        let attaching = timeout(ATTACHING, client.attach(ReceiverStream::new(outgoing))).await;
        let mut incoming = match attaching {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return self.refusal(&status),
            Err(_) => return Ended::Broken,
        };
        if !self.secret.is_empty() {
            self.connected.send_replace(true);
        }
        if told.phase == RunnerPhase::Done as i32 {
            drop(out);
            return goodbye(incoming).await;
        }
        let mut tick = interval_at(next_second(), TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut ticks = 0_u32;
        loop {
            tokio::select! {
                received = incoming.message() => match received {
                    Ok(Some(message)) => self.heard(message).await,
                    Ok(None) => return Ended::Broken,
                    Err(status) => return self.refusal(&status),
                },
                changed = self.facts.changed() => {
                    if changed.is_err() {
                        // The runner is gone without a DONE: it is unwinding.
                        return Ended::Done;
                    }
                    let now = self.now();
                    if matters_at_once(&told, &now) {
                        let done = now.phase == RunnerPhase::Done as i32;
                        // Whoever hears of the new phase finds what the engine said before it.
                        while self.send_lines(&out).await {}
                        if out.send(message(ToAgent::Facts(now.clone()))).await.is_err() {
                            return Ended::Broken;
                        }
                        told = now;
                        if done {
                            drop(out);
                            return goodbye(incoming).await;
                        }
                    }
                }
                _ = tick.tick() => {
                    let now = self.now();
                    if now != told || ticks.is_multiple_of(ALIVE) {
                        if out.send(message(ToAgent::Facts(now.clone()))).await.is_err() {
                            return Ended::Broken;
                        }
                        told = now;
                    }
                    ticks = ticks.wrapping_add(1);
                    self.send_lines(&out).await;
                }
            }
        }
    }

    /// The facts as they stand, the counters among them.
    fn now(&mut self) -> RunnerFacts {
        let mut facts = self.facts.borrow_and_update().clone();
        if let Some(counts) = &*self.counts.borrow() {
            facts.in_flight = counts.in_flight();
            facts.requests = counts.requests();
        }
        facts
    }

    fn hello(&self, facts: &RunnerFacts) -> RunnerHello {
        let first = self.secret.is_empty();
        RunnerHello {
            job_id: self.announcement.job_id,
            generation: self.announcement.generation.clone(),
            nonce: if first {
                self.announcement.nonce.clone()
            } else {
                String::new()
            },
            secret: self.secret.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            facts: self.ordered.then(|| facts.clone()),
        }
    }

    async fn heard(&mut self, message: AgentMessage) {
        let event = match message.message {
            Some(FromAgent::Welcome(welcome)) => {
                self.secret = welcome.secret;
                self.connected.send_replace(true);
                self.give_listener();
                return;
            }
            // A restarted agent may say it again; it is being obeyed already.
            Some(FromAgent::Order(_)) if self.ordered => return,
            Some(FromAgent::Order(order)) => {
                self.ordered = true;
                Event::Order(Box::new(self.with_listener(order).await))
            }
            Some(FromAgent::Released(_)) => Event::Released,
            Some(FromAgent::Stop(stop)) => Event::Stop(stop),
            // From a newer agent: nothing that this build could do.
            None => return,
        };
        let _ = self.events.send(event).await;
    }

    async fn with_listener(&mut self, launch: LaunchOrder) -> Order {
        let listener = handover::take(&self.ports_socket(), &self.claim()).await;
        self.listener = listener
            .as_ref()
            .ok()
            .and_then(|listener| listener.try_clone().ok());
        Order { launch, listener }
    }

    /// An agent that was restarted holds our port from now on, too. One that has it already takes no harm.
    fn give_listener(&self) {
        let Some(listener) = self.listener.as_ref().and_then(|it| it.try_clone().ok()) else {
            return;
        };
        let (socket, claim) = (self.ports_socket(), self.claim());
        tokio::spawn(async move {
            if let Err(why) = handover::give(&socket, &claim, &listener).await {
                tracing::warn!("the agent does not hold the port in case this runner is killed: {why}");
            }
        });
    }

    fn ports_socket(&self) -> PathBuf {
        handover::beside(Path::new(&self.announcement.socket))
    }

    fn claim(&self) -> Claim {
        Claim {
            job_id: self.announcement.job_id,
            generation: self.announcement.generation.clone(),
            secret: self.secret.clone(),
        }
    }

    fn refusal(&self, status: &Status) -> Ended {
        match status.code() {
            Code::NotFound => Ended::Refused(format!("the agent knows no such launch: {}", status.message())),
            Code::PermissionDenied if self.secret.is_empty() => {
                Ended::Refused(format!("the agent refuses this runner: {}", status.message()))
            }
            // Anything else may pass: an agent going down or coming up, or one that still holds the old stream.
            code => {
                tracing::debug!(?code, message = status.message(), "the line to the agent broke");
                Ended::Broken
            }
        }
    }

    /// Sends one batch; false when there was none to send.
    async fn send_lines(&mut self, out: &mpsc::Sender<RunnerMessage>) -> bool {
        let mut lines = Vec::new();
        while lines.len() < BATCH {
            match self.log.lines.try_recv() {
                Ok(line) => lines.push(line),
                Err(_) => break,
            }
        }
        let dropped = self.log.dropped.swap(0, Ordering::Relaxed);
        if lines.is_empty() && dropped == 0 {
            return false;
        }
        out.send(message(ToAgent::Log(LogLines { lines, dropped })))
            .await
            .is_ok()
    }
}

/// A phase, a port, an end: the rest may wait for the next tick.
fn matters_at_once(told: &RunnerFacts, now: &RunnerFacts) -> bool {
    told.phase != now.phase
        || told.port != now.port
        || told.ending != now.ending
        || told.attempt != now.attempt
        || (told.silent_since_ms == 0) != (now.silent_since_ms == 0)
}

/// Our side is closed; the agent closes its own once it has read everything.
async fn goodbye(mut incoming: Streaming<AgentMessage>) -> Ended {
    while let Ok(Some(_)) = incoming.message().await {}
    Ended::Done
}

fn message(message: ToAgent) -> RunnerMessage {
    RunnerMessage {
        message: Some(message),
    }
}
