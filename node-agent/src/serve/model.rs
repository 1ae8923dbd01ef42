//! The task that owns one served model: it alone changes the model's [`Life`], and carries out what that decides.
//!
//! Everything else sends it a [`Message`] and looks at its [`View`].

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use slurm_serve_proto::v1::{self, Cause, ModelState, RunnerPhase};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::log::LogTail;
use super::process::Known;
use super::srun;
use super::state::{Action, Event, Life, asked_ending};
use super::store::{Launch, Secrets};
use super::world::World;

/// How long a step that Slurm was not ready for waits before it is tried again, times the number of tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How often a client or runner that is no child of ours is looked at, and the end time in Slurm's books.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often, and at what distance, Slurm is asked why a job ended.
const CAUSE_QUESTIONS: u32 = 30;
const CAUSE_PAUSE: Duration = Duration::from_secs(1);
/// Looks between two questions to Slurm about the job.
const LOOKS_PER_QUESTION: u32 = 30;

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
    /// Slurm's books say that the job ends then (milliseconds since the epoch).
    EndsAt(i64),
    /// Slurm's books say that the job ended by this.
    JobEndedBy(Cause),
}

/// A runner that proved who it is.
#[derive(Debug)]
pub struct Attach {
    /// Its first words.
    pub hello: v1::RunnerHello,
    /// The runner's process.
    pub process: Option<Known>,
    /// Where it listens for us.
    pub outbound: mpsc::Sender<v1::AgentMessage>,
    /// Gets the number of the connection, or why not.
    pub reply: oneshot::Sender<Result<u64, AttachRefused>>,
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
    state_since_ms: i64,
    launch_deadline: Option<Instant>,
    runner_deadline: Option<Instant>,
    retry_at: Option<Instant>,
    client: Option<tokio::process::Child>,
    /// The revision with which it left the catalog, while that is waited for.
    leaving: Option<(u64, Instant)>,
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

/// Starts the task of a new model, or of one `recovered` from a former life of the agent.
pub fn spawn(world: Arc<World>, launch: Launch, secrets: Secrets, recovered: bool) -> Handle {
    let (messages, inbox) = mpsc::channel(256);
    let life = if recovered {
        Life::recovered(launch.was_ready)
    } else {
        Life::new()
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
        launch,
        secrets,
        me,
        life,
        view,
        log,
        outbound: None,
        connection: 0,
        facts: v1::RunnerFacts::default(),
        state_since_ms: crate::clock::now_ms(),
        launch_deadline: None,
        runner_deadline: None,
        retry_at: None,
        client: None,
        leaving: None,
    };
    if recovered {
        task.facts.port = u32::from(task.launch.port);
        task.runner_deadline = Some(Instant::now() + task.world.config.recover_timeout);
    }
    task.publish();
    tokio::spawn(task.run(inbox, recovered));
    handle
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, recovered: bool) {
        if !recovered {
            self.event(Event::Start).await;
        }
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u32;
        while !self.life.is_final() {
            match self.wake(&mut inbox, &mut looks).await {
                Wake::Message(message) => self.message(message).await,
                Wake::ClientExited => self.client_exited().await,
                Wake::LaunchDeadline => {
                    self.launch_deadline = None;
                    self.event(Event::LaunchDeadline).await;
                }
                Wake::RunnerDeadline => {
                    self.runner_deadline = None;
                    self.event(Event::RunnerDeadline).await;
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
                    count = (count + 1) % LOOKS_PER_QUESTION;
                    if count == 0 {
                        self.ask_slurm();
                    }
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
                if self.runner_is_alive() {
                    self.event(Event::Detached).await
                } else {
                    self.event(Event::RunnerDied).await
                }
            }
            Message::Detached(_) => {}
            // Only asked for once it is over.
            Message::JobEndedBy(_) => {}
            Message::EndsAt(end_ms) => {
                if end_ms != self.launch.end_ms {
                    self.launch.end_ms = end_ms;
                    self.keep();
                    self.publish();
                }
            }
        }
    }

    async fn attach(&mut self, attach: Attach) {
        let hello = &attach.hello;
        let proven = match (&self.secrets.nonce, hello.nonce.is_empty()) {
            (Some(nonce), false) => same(nonce, &hello.nonce),
            _ => !hello.secret.is_empty() && same(&self.secrets.secret, &hello.secret),
        };
        let refused = if !proven {
            Some(AttachRefused::Unproven)
        } else if self
            .outbound
            .as_ref()
            .is_some_and(|outbound| !outbound.is_closed())
            && self.runner_is_alive()
        {
            Some(AttachRefused::Occupied)
        } else {
            None
        };
        if let Some(refused) = refused {
            tracing::warn!(
                generation = self.launch.generation,
                pid = hello.pid,
                ?refused,
                "a runner was sent away"
            );
            let _ = attach.reply.send(Err(refused));
            return;
        }
        self.connection += 1;
        self.secrets.nonce = None;
        self.launch.runner = attach.process.map(|process| (process.pid, process.start));
        self.keep();
        if let Err(e) = self
            .world
            .store
            .save_secrets(&self.launch.generation, &self.secrets)
        {
            tracing::error!("{e}");
        }
        self.outbound = Some(attach.outbound);
        (self.launch_deadline, self.runner_deadline) = (None, None);
        let _ = attach.reply.send(Ok(self.connection));
        let welcome = v1::Welcome {
            secret: self.secrets.secret.clone(),
        };
        self.say(v1::agent_message::Message::Welcome(welcome)).await;
        self.view.send_modify(|view| view.recovering = false);
        // First how things stand: one that loads already needs no order.
        if let Some(facts) = attach.hello.facts {
            self.take_facts(facts).await;
        }
        self.event(Event::Attached).await;
        self.publish();
    }

    async fn take_facts(&mut self, mut facts: v1::RunnerFacts) {
        let phase = facts.phase();
        let mut port = u16::try_from(facts.port).unwrap_or(0);
        if facts.ending.is_some() && port != self.launch.port {
            // It failed so fast that its port is closed again before we looked: why it failed is all that counts now.
            port = self.launch.port;
            facts.port = u32::from(port);
        }
        if port != 0 && port != self.launch.port {
            let ends = matches!(
                phase,
                RunnerPhase::Leaving | RunnerPhase::Draining | RunnerPhase::Done
            );
            if super::process::listens(port, self.launch.uid) {
                self.launch.port = port;
                self.world
                    .ports
                    .keep(&self.launch.generation, port, self.launch.internal_port);
                self.keep();
            } else if !ends {
                // One that failed at once has let go of its port before this is read; why it did so must be heard.
                tracing::warn!(
                    generation = self.launch.generation,
                    port,
                    "the runner says it owns a port that nobody of its uid listens on"
                );
                return;
            }
        }
        let ending = facts.ending.clone();
        let before = self.life.state;
        self.facts = facts;
        if phase == RunnerPhase::Ready && !self.launch.was_ready {
            self.launch.was_ready = true;
            self.keep();
        }
        self.event(Event::Facts(phase, ending)).await;
        if before == self.life.state {
            self.publish();
        }
    }

    async fn event(&mut self, event: Event) {
        let before = self.life.state;
        let actions = self.life.step(event);
        if self.life.state != before {
            self.state_since_ms = crate::clock::now_ms();
            tracing::info!(
                generation = self.launch.generation,
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

    async fn act(&mut self, action: Action) {
        let world = self.world.clone();
        let config = &world.config;
        match action {
            Action::StartStep => self.start_step().await,
            Action::RetryStep => self.retry_at = Some(Instant::now() + RETRY_PAUSE * self.life.attempts),
            Action::ArmLaunchDeadline => self.launch_deadline = Some(Instant::now() + config.launch_timeout),
            Action::ArmRunnerDeadline => self.runner_deadline = Some(Instant::now() + config.runner_timeout),
            Action::SendOrder => match self.secrets.order() {
                Ok(order) => self.say(v1::agent_message::Message::Order(order)).await,
                Err(e) => {
                    tracing::error!(
                        generation = self.launch.generation,
                        "the launch order cannot be read: {e}"
                    );
                    self.say(stop(Cause::Internal)).await;
                }
            },
            Action::SendStop(cause) => self.say(stop(cause)).await,
            Action::SendReleased => {
                self.say(v1::agent_message::Message::Released(v1::Released {}))
                    .await
            }
            Action::AwaitRelease => {
                // Published as draining a moment ago; that revision is what the watchers must have seen.
                let revision = self.publish();
                self.leaving = Some((revision, Instant::now() + config.settle_timeout));
            }
            Action::KillStep => self.kill_step().await,
            Action::Close { failed } => self.close(failed),
        }
    }

    async fn start_step(&mut self) {
        let (uid, generation) = (self.launch.uid, self.launch.generation.clone());
        let user = super::users::by_uid(uid).await;
        let log = self.world.store.client_log(&generation);
        let started = match user {
            Err(why) => Err(why),
            Ok(user) => srun::start(&srun::StepStart {
                srun: &self.world.slurm.program("srun"),
                job_id: self.launch.job_id,
                node: &self.world.node,
                user: &user,
                program: &self.world.program,
                socket: &self.world.config.socket,
                generation: &generation,
                nonce: self.secrets.nonce.as_deref().unwrap_or_default(),
                log: &log,
            })
            .map_err(|e| e.to_string()),
        };
        match started {
            Ok((client, known)) => {
                self.client = Some(client);
                self.launch.client = Some((known.pid, known.start));
                self.keep();
            }
            // Boxed: `event` leads here again, and a future cannot hold itself.
            Err(text) => Box::pin(self.event(Event::StepRefused { text, passing: false })).await,
        }
    }

    async fn client_exited(&mut self) {
        self.client = None;
        if self.life.attached {
            // What the runner said last may still be on its way; its stream ends when it does.
            if !self.runner_is_alive() && self.outbound.is_none() {
                self.event(Event::StepExited).await;
            }
            return;
        }
        if self.launch.runner.is_some() {
            self.event(Event::StepExited).await;
            return;
        }
        let text = srun::last_words(&self.world.store.client_log(&self.launch.generation));
        let passing = srun::is_passing(&text);
        self.event(Event::StepRefused { text, passing }).await;
    }

    /// A model of a former life has a client and a runner that are no children of ours.
    async fn look(&mut self) {
        if self.outbound.is_none() && self.launch.runner.is_some() && !self.runner_is_alive() {
            self.event(Event::RunnerDied).await;
        }
    }

    /// The time limit may have been changed, or the job be over without our having been told.
    fn ask_slurm(&self) {
        let (world, job_id, me) = (self.world.clone(), self.launch.job_id, self.me.clone());
        tokio::spawn(async move {
            match (world.slurm.job(job_id).await, me.upgrade()) {
                (Ok(Some(job)), Some(me)) => {
                    let _ = me.send(Message::EndsAt(job.end_ms)).await;
                }
                (Ok(_), _) => {}
                (Err(e), _) => tracing::debug!("the end time of job {job_id} was not read again: {e}"),
            }
        });
    }

    fn runner_is_alive(&self) -> bool {
        self.launch
            .runner
            .is_some_and(|(pid, start)| Known { pid, start }.is_alive())
    }

    async fn say(&mut self, message: v1::agent_message::Message) {
        if let Some(outbound) = &self.outbound {
            // A runner that does not read within this is as good as detached; its stream's end will tell.
            let message = v1::AgentMessage {
                message: Some(message),
            };
            let _ = tokio::time::timeout(Duration::from_secs(1), outbound.send(message)).await;
        }
    }

    async fn kill_step(&mut self) {
        if self.client.is_none() && self.launch.client.is_none() {
            return;
        }
        let known = self.launch.client.map(|(pid, start)| Known { pid, start });
        let Some(known) = known.filter(|known| known.is_alive()) else {
            return;
        };
        // srun passes a TERM on to the step; what does not end by that is killed.
        known.kill_group(Signal::SIGTERM);
        let client = self.client.take();
        let grace = self.world.config.runner_timeout;
        tokio::spawn(async move {
            let gone = async {
                match client {
                    Some(mut client) => {
                        let _ = client.wait().await;
                    }
                    None => {
                        while known.is_alive() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    }
                }
            };
            if tokio::time::timeout(grace, gone).await.is_err() {
                known.kill_group(Signal::SIGKILL);
            }
        });
    }

    fn close(&mut self, failed: bool) {
        self.outbound = None;
        self.view.send_modify(|view| {
            view.released = true;
            view.recovering = false;
        });
        self.world.ports.release(&self.launch.generation);
        self.world.store.forget(&self.launch.generation);
        self.log.close();
        if self.facts.phase() != RunnerPhase::Done {
            self.sweep();
        }
        if failed && self.launch.cancel_job_on_failure {
            let (world, job_id) = (self.world.clone(), self.launch.job_id);
            tokio::spawn(async move {
                if let Err(e) = world.slurm.cancel(job_id).await {
                    tracing::error!("job {job_id} asked to be cancelled with its server, but: {e}");
                }
            });
        }
    }

    /// A runner that was killed could not remove its folder.
    fn sweep(&self) {
        let (scratch, job_id, uid) = (
            self.world.config.scratch_dir.clone(),
            self.launch.job_id,
            self.launch.uid,
        );
        tokio::task::spawn_blocking(move || super::sweep::folders(&scratch, job_id, uid));
    }

    /// Final: the state is kept a while for those who ask, and a late runner is told that it is over.
    async fn over(mut self, mut inbox: mpsc::Receiver<Message>) {
        if self
            .life
            .ending
            .as_ref()
            .is_some_and(|ending| ending.cause() == Cause::JobEnded)
        {
            tokio::spawn(find_cause(
                self.world.clone(),
                self.launch.job_id,
                self.me.clone(),
            ));
        }
        let until = Instant::now() + self.world.config.keep_ended;
        loop {
            let message = tokio::time::timeout_at(until, inbox.recv()).await;
            match message {
                Ok(Some(Message::Attach(attach))) => {
                    let _ = attach.reply.send(Err(AttachRefused::Over));
                }
                Ok(Some(Message::JobEndedBy(cause))) => {
                    let before = self.life.ending.take().unwrap_or_default();
                    let text = asked_ending(cause).text;
                    self.life.ending = Some(v1::Ending {
                        cause: cause.into(),
                        text,
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
        self.world.hub.remove(&self.launch.generation);
    }

    fn keep(&self) {
        if let Err(e) = self.world.store.save(&self.launch) {
            tracing::error!("{e}: after a restart of the agent this model will be ended");
        }
    }

    /// Tells the world how things stand. Returns the revision in the catalog.
    fn publish(&mut self) -> u64 {
        let model = self.model();
        self.view.send_modify(|view| {
            view.revision += 1;
            view.log_note = self.facts.log_note.clone();
            view.model = model.clone();
        });
        self.world.hub.set(model)
    }

    fn model(&self) -> v1::Model {
        let (launch, facts) = (&self.launch, &self.facts);
        let mut ending = self.life.ending.clone();
        if let Some(ending) = &mut ending
            && ending.log_path.is_empty()
        {
            ending.log_path = facts.log_path.clone();
        }
        let has_port = launch.port != 0 && self.life.state >= ModelState::Loading;
        v1::Model {
            name: launch.public_name.clone(),
            aliases: launch.aliases.clone(),
            recipe: launch.recipe.clone(),
            owner: launch.user.clone(),
            owner_uid: launch.uid,
            cluster: launch.cluster.clone(),
            node: self.world.node.clone(),
            job_id: launch.job_id,
            generation: launch.generation.clone(),
            state: self.life.state.into(),
            state_since_ms: self.state_since_ms,
            expires_ms: launch.end_ms,
            task: launch.task.clone(),
            base_url: if has_port {
                format!("http://{}:{}/v1", self.world.address, launch.port)
            } else {
                String::new()
            },
            published: launch.published,
            in_flight: facts.in_flight,
            requests: facts.requests,
            progress: facts.progress.clone(),
            engine_version: facts.engine_version.clone(),
            ending,
            key: if self.life.is_final() {
                String::new()
            } else {
                self.secrets.key.clone()
            },
            log_path: facts.log_path.clone(),
        }
    }
}

/// Why the job ended. The hooks see only that it does; Slurm's books say it once the job is past COMPLETING.
async fn find_cause(world: Arc<World>, job_id: u32, me: mpsc::WeakSender<Message>) {
    let mut asked = 0_u32;
    let cause = loop {
        match world.slurm.job(job_id).await {
            // Not in the books yet: task_exit comes before slurmctld hears of it.
            Ok(Some(job)) if job.state == "COMPLETING" || job.state == "RUNNING" => {}
            Ok(Some(job)) => break cause_of(&job.state),
            Ok(None) => return,
            Err(e) => tracing::debug!("why job {job_id} ended is not known: {e}"),
        }
        asked += 1;
        if asked == CAUSE_QUESTIONS {
            return;
        }
        tokio::time::sleep(CAUSE_PAUSE).await;
    };
    if let (Some(cause), Some(me)) = (cause, me.upgrade()) {
        let _ = me.send(Message::JobEndedBy(cause)).await;
    }
}

/// Of a job state as squeue prints it. A job that was asked to run again is pending.
fn cause_of(state: &str) -> Option<Cause> {
    match state {
        "CANCELLED" => Some(Cause::Cancelled),
        "TIMEOUT" | "DEADLINE" => Some(Cause::TimeLimit),
        "PREEMPTED" => Some(Cause::Preempted),
        "PENDING" | "REQUEUED" | "CONFIGURING" => Some(Cause::Requeued),
        _ => None,
    }
}

fn stop(cause: Cause) -> v1::agent_message::Message {
    v1::agent_message::Message::Stop(v1::StopOrder { cause: cause.into() })
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Compares in a time that tells nothing of where they differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
}
