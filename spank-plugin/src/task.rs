//! task_init: the job asks for its model and waits for it, as the user, before the user's program starts.
//!
//! ```text
//! OpenModel ── launch ──> LaunchModel ──> AwaitModel … ── ready ──> environment set, program starts
//!     │  (somebody has already)             │   │
//!     └─────────────────────────────────────┘   ├─ failed, ended ──> the lines that say why; the job fails
//!        no answer: tried again for agent_wait   └─ job is being ended ──> end
//! ```
//!
//! Every task of every step that sees the option does this, and all get the same model; only one of them speaks.

use std::time::{Duration, Instant};

use slurm_serve_proto::v1::hooks_client::HooksClient;
use slurm_serve_proto::v1::jobs_client::JobsClient;
use slurm_serve_proto::v1::{
    AwaitModelRequest, AwaitModelResponse, LaunchModelRequest, Model, ModelState, OpenModelRequest,
    OpenModelResponse,
};
use slurm_serve_recipe::{EnvMode, MAX_ENV_BYTES, MAX_RECIPE_BYTES, RawOptions, Recipe, ServeOptions};
use tonic::Code;

use crate::environment;
use crate::options::for_agent;
use crate::progress::{Progress, ending_lines, one_line};
use crate::rpc::{Agent, CallError};
use crate::settings::Settings;
use crate::user_recipes::Readable;

/// How long one short call may take before the agent counts as not answering.
const CALL: Duration = Duration::from_secs(5);
/// How long the agent holds an AwaitModel back. Also how soon the end of the job is noticed where Slurm does not signal us.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long between two tries to reach an agent.
const RETRY: Duration = Duration::from_millis(500);
/// The agent ends the wait by the recipe's deadline. Should it forget to, we do, this much later.
const GRACE: Duration = Duration::from_secs(300);
/// What this needs of Slurm: the job's environment, and a way to speak.
pub trait Job {
    /// One variable of the job.
    fn var(&self, name: &str) -> Option<String>;
    /// All of them that are text.
    fn vars(&self) -> Vec<(String, String)>;
    /// Sets one for the user's program. The error is one line.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;
    /// Removes one.
    fn unset(&mut self, name: &str);
    /// A line into the job's stderr.
    fn say(&self, line: &str);
}

/// Which task asks for what.
#[derive(Debug, Clone, Default)]
pub struct Asker {
    /// Slurm's job id.
    pub job_id: u32,
    /// Slurm's step id; the batch step has a number of its own.
    pub step_id: u32,
    /// The options as this step sees them, unchecked.
    pub options: RawOptions,
    /// Rank 0 of its step: shows progress.
    pub leads: bool,
}

/// The job cannot have its model. The lines say why.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(pub Vec<String>);

impl From<String> for Failure {
    fn from(line: String) -> Self {
        Self(vec![line])
    }
}

/// Gets the job its model, and the environment to use it. Returns when the user's program may start.
pub fn prepare(job: &mut dyn Job, asker: &Asker, settings: &Settings) -> Result<(), Failure> {
    let options =
        ServeOptions::check(&asker.options).map_err(|error| Failure::from(format!("serve: {error}")))?;
    let asker = &Asker {
        job_id: first_component(job).unwrap_or(asker.job_id),
        ..asker.clone()
    };
    let model = Waiter::new(job, asker, settings).run()?;
    for name in environment::inherited_options() {
        job.unset(&name);
    }
    let changes = environment::changes(&model, options.env == EnvMode::OpenAi, |name| job.var(name));
    for (name, value) in &changes.set {
        job.set(name, value)
            .map_err(|error| format!("serve: {name} could not be set for this job: {error}"))?;
    }
    if asker.leads {
        changes.told.iter().for_each(|line| job.say(line));
    }
    Ok(())
}

/// Each component of a heterogeneous job has a job id of its own; the model is that of the first. The variable is the user's to change: the
/// agent asks whose job it is.
fn first_component(job: &dyn Job) -> Option<u32> {
    job.var("SLURM_JOB_ID_HET_GROUP_0")?.parse().ok()
}

/// One task's wait.
struct Waiter<'a> {
    job: &'a dyn Job,
    asker: &'a Asker,
    settings: &'a Settings,
    agent: Agent,
    started: Instant,
    progress: Progress,
    /// Since when the agent has not answered.
    silent_since: Option<Instant>,
}

/// What one look at the model came to.
enum Seen {
    Use(Box<Model>),
    /// The agent does not know the model (any more); ask again from the start.
    Unknown(String),
}

impl<'a> Waiter<'a> {
    fn new(job: &'a dyn Job, asker: &'a Asker, settings: &'a Settings) -> Self {
        let started = Instant::now();
        Self {
            job,
            asker,
            settings,
            agent: Agent::at(&settings.socket),
            started,
            progress: Progress::since(started),
            silent_since: None,
        }
    }

    fn run(mut self) -> Result<Model, Failure> {
        let own_recipe = self.own_recipe();
        let own_recipe = own_recipe.as_ref();
        loop {
            let began = Instant::now();
            let opened = match self.open(own_recipe.is_some()) {
                Ok(opened) => opened,
                Err(error) => {
                    self.bear_with(began, error)?;
                    continue;
                }
            };
            if opened.launch
                && let Err(error) = self.launch(&opened, own_recipe)?
            {
                self.bear_with(began, error)?;
                continue;
            }
            // The agent does not know how long the user's own recipe allows before it has it.
            let own = own_recipe.map_or(Duration::ZERO, |recipe| recipe.ready_timeout);
            let allowed = own.max(Duration::from_secs(opened.ready_timeout_s.into()));
            match self.await_model(&opened, allowed)? {
                Seen::Use(model) => {
                    // A later step of the job finds the model ready, and has nothing to tell.
                    if self.asker.leads && (opened.launch || self.progress.has_shown()) {
                        self.job.say(&self.progress.ready(&model, Instant::now()));
                    }
                    return Ok(*model);
                }
                Seen::Unknown(why) => self.bear_with(Instant::now(), CallError::NoAnswer(why))?,
            }
        }
    }

    /// The user's own recipe, if that is what was named.
    fn own_recipe(&self) -> Option<Recipe> {
        let readable = Readable::load(&self.settings.recipes, self.job.var("HOME").as_deref());
        readable.users_own(&self.asker.options.model).cloned()
    }

    fn open(&self, has_user_recipe: bool) -> Result<OpenModelResponse, CallError> {
        let request = OpenModelRequest {
            job_id: self.asker.job_id,
            step_id: self.asker.step_id,
            restart_count: self.restart_count(),
            options: Some(for_agent(self.asker.options.clone())),
            has_user_recipe,
        };
        // A hung agent is tried at least once, and not for longer than it is waited for.
        let deadline = CALL.min(self.settings.agent_wait.max(LOOK_EVERY));
        self.agent.call(deadline, async |channel| {
            HooksClient::new(channel).open_model(request).await
        })
    }

    /// The outer error is final, the inner one is the call's.
    fn launch(
        &self,
        opened: &OpenModelResponse,
        own_recipe: Option<&Recipe>,
    ) -> Result<Result<(), CallError>, Failure> {
        let (wanted, user_recipe) = match own_recipe {
            Some(recipe) => (recipe.pass_env.as_slice(), recipe.to_toml()),
            None => (opened.wanted_env.as_slice(), String::new()),
        };
        if user_recipe.len() > MAX_RECIPE_BYTES {
            return Err(Failure::from(format!(
                "serve: your recipe {} is longer than {} KiB: shorten it",
                self.asker.options.model,
                MAX_RECIPE_BYTES / 1024
            )));
        }
        let env = environment::pick(&self.job.vars(), wanted);
        if env
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>()
            > MAX_ENV_BYTES
        {
            return Err(Failure::from(format!(
                "serve: what the recipe {} passes on of this job's environment is larger than {} KiB: name fewer variables in its \
                 pass_env",
                self.asker.options.model,
                MAX_ENV_BYTES / 1024
            )));
        }
        let request = LaunchModelRequest {
            job_id: self.asker.job_id,
            restart_count: self.restart_count(),
            options: Some(for_agent(self.asker.options.clone())),
            env: env.into_iter().collect(),
            user_recipe,
        };
        let call = async |channel| HooksClient::new(channel).launch_model(request).await;
        Ok(self.agent.call(CALL, call).map(|_| ()))
    }

    fn await_model(&mut self, opened: &OpenModelResponse, allowed: Duration) -> Result<Seen, Failure> {
        let deadline = allowed + GRACE;
        let mut seen_revision = 0;
        let mut note = String::new();
        loop {
            let began = Instant::now();
            let answer = match self.look(seen_revision) {
                Ok(answer) => answer,
                Err(CallError::Refused(Code::NotFound, why)) => return Ok(Seen::Unknown(why)),
                Err(error) => {
                    self.bear_with(began, error)?;
                    seen_revision = 0;
                    continue;
                }
            };
            self.answered();
            if answer.job_ending {
                return Err(Failure::from(format!(
                    "serve: {}: no longer waited for: the job is being ended",
                    self.asker.options.model
                )));
            }
            seen_revision = answer.revision;
            if self.asker.leads && note != answer.note {
                self.job.say(&format!("serve: {}", one_line(&answer.note)));
                note = answer.note;
            }
            let Some(model) = answer.model else {
                return Ok(Seen::Unknown("it knows no model of this job yet".into()));
            };
            match model.state() {
                ModelState::Ready | ModelState::Retiring => return Ok(Seen::Use(Box::new(model))),
                ModelState::Draining | ModelState::Ended | ModelState::Failed => {
                    return Err(Failure(ending_lines(&model)));
                }
                _ if !opened.wait_for_ready && !model.base_url.is_empty() => {
                    return Ok(Seen::Use(Box::new(model)));
                }
                _ => {}
            }
            let now = Instant::now();
            if self.asker.leads
                && let Some(line) = self.progress.line(&model, now)
            {
                self.job.say(&line);
            }
            if now.duration_since(self.started) > deadline {
                return Err(Failure::from(format!(
                    "serve: {}: not ready after {} s, and the agent did not say why: ask your admin to look at the agent's log on {}",
                    self.asker.options.model,
                    deadline.as_secs(),
                    self.node()
                )));
            }
        }
    }

    fn look(&self, seen_revision: u64) -> Result<AwaitModelResponse, CallError> {
        let request = AwaitModelRequest {
            job_id: self.asker.job_id,
            seen_revision,
            wait_ms: LOOK_EVERY.as_millis() as u32,
        };
        self.agent.call(LOOK_EVERY + CALL, async |channel| {
            JobsClient::new(channel).await_model(request).await
        })
    }

    /// Pauses after a call that `began` then and got no answer; fails once the agent has been silent for too long, or has
    /// said no.
    fn bear_with(&mut self, began: Instant, error: CallError) -> Result<(), Failure> {
        let model = &self.asker.options.model;
        let why = match error {
            CallError::NoAnswer(why) => one_line(&why),
            CallError::Refused(_, why) => {
                return Err(Failure::from(format!("serve: {model}: {}", one_line(&why))));
            }
        };
        let (socket, limit) = (self.agent.socket().display(), self.settings.agent_wait);
        let known = self.silent_since.is_some();
        let since = *self.silent_since.get_or_insert(began);
        if since.elapsed() >= limit {
            return Err(Failure::from(format!(
                "serve: {model}: the agent on {} has not answered for {} s ({socket}: {why}): the job ends here; submit it again \
                 once your admin has looked at slurm-serve on that node",
                self.node(),
                limit.as_secs()
            )));
        }
        if !known && self.asker.leads {
            self.job.say(&format!(
                "serve: {model}: the agent on {} does not answer ({socket}: {why}); waiting up to {} s for it",
                self.node(),
                limit.as_secs()
            ));
        }
        std::thread::sleep(RETRY);
        Ok(())
    }

    fn answered(&mut self) {
        if self.silent_since.take().is_some() && self.asker.leads {
            self.job.say("serve: the agent answers");
        }
    }

    /// Written to the job's environment by Slurm; SPANK's own item for it is always 0.
    fn restart_count(&self) -> u32 {
        let count = self.job.var("SLURM_RESTART_COUNT");
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    fn node(&self) -> String {
        self.job
            .var("SLURMD_NODENAME")
            .unwrap_or_else(|| "this node".into())
    }
}
