//! The task that owns one served model: it alone changes the model's [`Life`], and carries out what that decides.
//!
//! Everything else sends it a [`Message`] and looks at its [`View`]. Its methods are here and in the files beside this one: `runner` (taking
//! it in, believing it), `port` (who has its port), `act` (carrying out what the life decides), `told` (disk and catalog), `books` (what
//! Slurm says of the job).

mod act;
mod books;
mod port;
mod runner;
mod told;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1::{self, Cause, ModelState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::log::LogTail;
use super::port::Port;
use super::process::Known;
use super::srun;
use super::state::{Event, Life, RunEvent};
use super::store::{Launch, Secrets};
use super::world::World;
use crate::clock::next_second;
use books::{Books, Question};

/// How often a client or runner that is no child of ours is looked at, and the end time in Slurm's books.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a model's task is told.
#[derive(Debug)]
pub enum Message {
    /// Something happened.
    Event(Event),
    /// A runner came.
    Attach(Box<Attach>),
    /// What the runner of connection number `.0` says.
    Facts(u64, Box<v1::RunnerFacts>),
    /// The connection of that number broke.
    Detached(u64),
    /// The runner wants the listener of its port, or gives it back.
    Port(Box<PortWish>),
    /// Slurm's books say that the job ends then (milliseconds since the epoch); `None`: they could not be read.
    EndsAt(Option<i64>),
    /// Slurm's books say that the job ended by this, and how that is told.
    JobEndedBy(Cause, String),
}

/// A runner that proved who it is.
#[derive(Debug)]
pub struct Attach {
    /// Its first words.
    pub hello: v1::RunnerHello,
    /// The runner's process.
    pub process: Known,
    /// Where it listens for us.
    pub outbound: mpsc::Sender<v1::AgentMessage>,
    /// Gets the number of the connection, or why not.
    pub reply: oneshot::Sender<Result<u64, AttachRefused>>,
}

/// The listener of the guard's port is to change hands.
#[derive(Debug)]
pub struct PortWish {
    /// What the caller shows.
    pub secret: String,
    /// The calling process.
    pub process: Known,
    /// The listener, if it is given back.
    pub given: Option<OwnedFd>,
    /// Gets the listener, if it is asked for; or why not, in one line.
    pub reply: oneshot::Sender<Result<Option<OwnedFd>, String>>,
}

/// Why a runner is sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachRefused {
    /// Another one is there.
    Occupied,
    /// Neither nonce nor secret are right.
    Unproven,
    /// The model is over.
    Over,
}

/// What others see of a model.
#[derive(Debug, Clone)]
pub struct View {
    /// Counts up with each change.
    pub revision: u64,
    /// With its key in clear text.
    pub model: v1::Model,
    /// Its job is being ended.
    pub job_ending: bool,
    /// Every catalog has let go of it, or need not.
    pub released: bool,
    /// Said to the user when the log could not be put where it belongs.
    pub log_note: String,
    /// Of a former life of the agent, and its runner is not back yet.
    pub recovering: bool,
}

/// Of a model's task, for everybody else.
#[derive(Debug, Clone)]
pub struct Handle {
    /// What it was launched as.
    pub launch: Arc<Launch>,
    /// To the task.
    pub messages: mpsc::Sender<Message>,
    /// From the task.
    pub view: watch::Receiver<View>,
    /// The tail of its log.
    pub log: Arc<LogTail>,
}

/// One model.
pub struct Task {
    world: Arc<World>,
    launch: Launch,
    secrets: Secrets,
    /// For messages to itself; weak, so that the task ends when nobody else can reach it.
    me: mpsc::WeakSender<Message>,
    life: Life,
    view: watch::Sender<View>,
    log: Arc<LogTail>,
    outbound: Option<mpsc::Sender<v1::AgentMessage>>,
    connection: u64,
    facts: v1::RunnerFacts,
    /// Looks since the runner was heard last.
    unheard: u32,
    /// The generation in the catalog.
    announced: String,
    state_since_ms: i64,
    launch_deadline: Option<Instant>,
    runner_deadline: Option<Instant>,
    retry_at: Option<Instant>,
    client: Option<tokio::process::Child>,
    /// What that client says.
    words: Option<srun::Words>,
    books: Books,
    /// The revision with which it left the catalog, while that is waited for.
    leaving: Option<(u64, Instant)>,
    port: Port,
    /// Of a former life of the agent: those who watched that one may believe in it until then, though we know nothing of them.
    believed_until: Option<Instant>,
}

/// What wakes the task.
enum Wake {
    Message(Message),
    ClientExited,
    LaunchDeadline,
    RunnerDeadline,
    Retry,
    Released,
    Look,
    Gone,
}

/// Starts the task of a new model, whose port was just `made`; or of one from a former life of the agent, whose runner will give it back.
pub fn spawn(world: Arc<World>, launch: Launch, secrets: Secrets, made: Option<TcpListener>) -> Handle {
    let recovered = made.is_none();
    let (messages, inbox) = mpsc::channel(256);
    let life = if recovered {
        Life::recovered(launch.life)
    } else {
        Life::new(launch.life.max_attempts)
    };
    let log = Arc::new(LogTail::default());
    let view = View {
        revision: 1,
        model: v1::Model::default(),
        job_ending: false,
        released: false,
        log_note: String::new(),
        recovering: recovered,
    };
    let view = watch::Sender::new(view);
    let me = messages.downgrade();
    let handle = Handle {
        launch: Arc::new(launch.clone()),
        messages,
        view: view.subscribe(),
        log: log.clone(),
    };
    let mut task = Task {
        world,
        port: Port::new(launch.port, made),
        launch,
        secrets,
        me,
        life,
        view,
        log,
        outbound: None,
        connection: 0,
        facts: v1::RunnerFacts::default(),
        unheard: 0,
        announced: String::new(),
        state_since_ms: crate::clock::now_ms(),
        launch_deadline: None,
        runner_deadline: None,
        retry_at: None,
        client: None,
        words: None,
        books: Books::default(),
        leaving: None,
        believed_until: None,
    };
    if recovered {
        task.believed_until = Some(Instant::now() + task.world.config.lease);
        task.recover();
        if !task.runner_is_alive() {
            task.answer_on_port("its runner is gone");
        }
    }
    task.publish();
    tokio::spawn(task.run(inbox, recovered));
    handle
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, recovered: bool) {
        if !recovered {
            self.event(Event::Start).await;
        } else if self.life.is_without_run() {
            self.restart_later();
        }
        let mut looks = tokio::time::interval_at(next_second(), LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !self.life.is_final() {
            match self.wake(&mut inbox, &mut looks).await {
                Wake::Message(message) => self.message(message).await,
                Wake::ClientExited => self.client_exited().await,
                Wake::LaunchDeadline => {
                    self.launch_deadline = None;
                    if !self.life.attached {
                        let words = self.words.as_ref().map(srun::Words::last).unwrap_or_default();
                        tracing::warn!(
                            generation = self.generation(),
                            "no runner came in time; srun: {words}"
                        );
                    }
                    self.run_event(RunEvent::LaunchDeadline).await;
                }
                Wake::RunnerDeadline => {
                    self.runner_deadline = None;
                    self.runner_is_late().await;
                }
                Wake::Retry => {
                    self.retry_at = None;
                    self.start_step().await;
                }
                Wake::Released => {
                    self.leaving = None;
                    self.view.send_modify(|view| view.released = true);
                    self.event(Event::Released).await;
                }
                Wake::Look => {
                    self.look().await;
                    self.look_at_the_clock().await;
                }
                Wake::Gone => return,
            }
        }
        self.over(inbox).await;
    }

    async fn wake(&mut self, inbox: &mut mpsc::Receiver<Message>, looks: &mut tokio::time::Interval) -> Wake {
        let hub = self.world.hub.clone();
        let leaving = self.leaving;
        let released = async move {
            match leaving {
                None => std::future::pending().await,
                // Whoever has not let go by then never will.
                Some((revision, until)) => {
                    let _ = tokio::time::timeout_at(until, hub.released(revision)).await;
                }
            }
        };
        let exited = async {
            match &mut self.client {
                None => std::future::pending().await,
                Some(client) => {
                    let _ = client.wait().await;
                }
            }
        };
        tokio::select! {
            message = inbox.recv() => message.map_or(Wake::Gone, Wake::Message),
            () = exited => Wake::ClientExited,
            () = released => Wake::Released,
            () = at(self.launch_deadline) => Wake::LaunchDeadline,
            () = at(self.runner_deadline) => Wake::RunnerDeadline,
            () = at(self.retry_at) => Wake::Retry,
            _ = looks.tick() => Wake::Look,
        }
    }

    async fn message(&mut self, message: Message) {
        match message {
            Message::Event(event) => {
                if matches!(event, Event::Stop(Cause::JobEnded) | Event::JobEnded) {
                    self.view.send_modify(|view| view.job_ending = true);
                }
                self.event(event).await;
            }
            Message::Attach(attach) => self.attach(*attach).await,
            Message::Facts(connection, facts) if connection == self.connection => {
                self.take_facts(*facts).await
            }
            Message::Facts(..) => {}
            Message::Detached(connection) if connection == self.connection && self.outbound.is_some() => {
                self.outbound = None;
                let what = match self.runner_is_alive() {
                    true => RunEvent::Detached,
                    false => RunEvent::RunnerDied,
                };
                self.run_event(what).await;
            }
            Message::Detached(_) => {}
            Message::Port(wish) => self.port_wish(*wish),
            // Only asked for once it is over.
            Message::JobEndedBy(..) => {}
            Message::EndsAt(end_ms) => self.slurm_said(end_ms).await,
        }
    }

    /// Something about the present run. (What is of a former one never gets here: its connection, its client and its deadlines went with
    /// it. The life itself would not take it either.)
    async fn run_event(&mut self, event: RunEvent) {
        self.event(Event::Of(self.life.run, event)).await;
    }

    async fn event(&mut self, event: Event) {
        let before = self.life.state;
        let actions = self.life.step(event);
        if self.life.kept() != self.launch.life && !self.life.is_final() {
            self.launch.life = self.life.kept();
            self.keep();
        }
        if self.life.state != before {
            self.state_since_ms = match self.life.state {
                // Noticed now; it began when the engine answered last.
                ModelState::Unresponsive if self.facts.silent_since_ms != 0 => self.facts.silent_since_ms,
                _ => crate::clock::now_ms(),
            };
            tracing::info!(
                generation = self.generation(),
                job = self.launch.job_id,
                name = self.launch.public_name,
                state = self.life.state.as_str_name(),
                cause = self
                    .life
                    .ending
                    .as_ref()
                    .map(|ending| ending.cause().as_str_name()),
                "model"
            );
            self.publish();
        }
        for action in actions {
            self.act(action).await;
        }
    }

    /// Final: the state is kept a while for those who ask, and a late runner is told that it is over.
    async fn over(mut self, mut inbox: mpsc::Receiver<Message>) {
        let question = match self.life.ending.as_ref().map(v1::Ending::cause) {
            Some(Cause::JobEnded) => Some(Question::WhyEnded),
            Some(Cause::RunnerLost) if self.connection == 0 => Some(Question::WhyGone),
            _ => None,
        };
        if let Some(question) = question {
            let (world, me) = (self.world.clone(), self.me.clone());
            tokio::spawn(books::find_cause(world, self.launch.job_id, question, me));
        }
        let until = Instant::now() + self.world.config.keep_ended;
        loop {
            let message = tokio::time::timeout_at(until, inbox.recv()).await;
            match message {
                Ok(Some(Message::Attach(attach))) => {
                    let _ = attach.reply.send(Err(AttachRefused::Over));
                }
                Ok(Some(Message::JobEndedBy(cause, text))) => {
                    let before = self.life.ending.take().unwrap_or_default();
                    self.life.state = ModelState::Ended;
                    self.life.ending = Some(v1::Ending {
                        cause: cause.into(),
                        text,
                        hint: String::new(),
                        ..before
                    });
                    self.publish();
                }
                // Only now is nothing of the job running that could still write there.
                Ok(Some(Message::Event(Event::JobEnded))) => self.sweep(),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.world.hub.remove(&self.announced);
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
