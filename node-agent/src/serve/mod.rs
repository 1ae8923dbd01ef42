//! The models of this node: who may ask for one, the task that owns each, and what survives the agent.
//!
//! `plan` decides what is launched, `model` is the task that owns one, `state` its life as a pure function, `srun` the client that starts
//! its step, `store` what is kept on disk. [`Models`] is the door.

mod allocation;
mod confine;
mod log;
mod model;
mod plan;
mod port;
mod ports;
mod process;
mod srun;
pub mod state;
mod store;
mod sweep;
mod turns;
mod users;
mod world;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slurm_serve_proto::v1::{self, Cause};
use slurm_serve_recipe::ServeOptions;
use tokio::sync::watch;

pub use self::confine::{Confine, Held};
pub use self::log::{LogTail, Part};
pub use self::model::{Attach, AttachRefused, Handle, Message, PortWish, View};
pub use self::plan::{Asker, Plan, Refused, make as make_plan};
pub use self::ports::Ports;
pub use self::process::{Known, is_in_job};
pub use self::state::Event;
pub use self::store::{Launch, Secrets, Store, StoreError};
pub use self::users::{by_uid, groups_of};
pub use self::world::World;

use self::state::Life;
use crate::generation;
use crate::job::{Job, JobError, Jobs};

/// Why somebody gets no model.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The job is not known here.
    #[error(transparent)]
    Job(#[from] JobError),
    /// It is somebody else's.
    #[error("job {0} is not yours")]
    NotYours(u32),
    /// It was submitted without the option.
    #[error(
        "job {0} was submitted without --serve-model; give the option to sbatch, salloc, or srun outside of an allocation"
    )]
    NotAsked(u32),
    /// The model of its earlier run is not gone yet.
    #[error("job {0}: the model of its earlier run is still ending")]
    StillEnding(u32),
    /// It is served on another of the job's nodes.
    #[error(
        "job {0}: its model is served on {1}, the first node of the job; run the step there (srun -w {1})"
    )]
    OtherNode(u32, String),
    /// Who asks from there has no business with it.
    #[error("job {0}: {1:?} is none of its nodes")]
    NotOf(u32, String),
    /// Options, recipe or environment do not hold.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// There is no room for one more.
    #[error("job {0}: {1}")]
    NoRoom(u32, String),
    /// The agent has a fault.
    #[error("job {0}: {1}")]
    Internal(u32, String),
}

/// All models of this node.
#[derive(Debug)]
pub struct Models {
    world: Arc<World>,
    jobs: Arc<Jobs>,
    /// The newest of each job.
    handles: Mutex<HashMap<u32, Handle>>,
    recovered: watch::Sender<bool>,
    turns: turns::Turns,
}

impl Models {
    /// None yet; see [`Models::recover`].
    pub fn new(world: Arc<World>, jobs: Arc<Jobs>) -> Arc<Self> {
        Arc::new(Self {
            world,
            jobs,
            handles: Mutex::default(),
            recovered: watch::Sender::new(false),
            turns: turns::Turns::default(),
        })
    }

    /// The surroundings.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Takes up the models of a former life; their runners will come back by themselves.
    pub fn recover(self: &Arc<Self>) {
        let mut views = Vec::new();
        let former = self.world.store.recover();
        let confined = former.iter().filter_map(|(launch, _)| launch.confined.as_ref());
        self.world.confine.sweep(confined);
        for (launch, secrets) in former {
            tracing::info!(
                generation = launch.generation,
                job = launch.job_id,
                "a model of a former life; its runner is expected back"
            );
            self.world
                .ports
                .keep(&launch.generation, launch.port, launch.internal_port);
            let handle = model::spawn(self.world.clone(), launch, secrets, None);
            views.push(handle.view.clone());
            self.lock().insert(handle.launch.job_id, handle);
        }
        let this = self.clone();
        tokio::spawn(async move {
            let all_back = async {
                for mut view in views {
                    let _ = view.wait_for(|view| !view.recovering).await;
                }
            };
            let _ = tokio::time::timeout(this.world.config.recover_timeout, all_back).await;
            this.recovered.send_replace(true);
        });
    }

    /// Resolves once the models of a former life are back, or given up.
    pub async fn recovered(&self) {
        let _ = self.recovered.subscribe().wait_for(|recovered| *recovered).await;
    }

    /// The newest model of a job.
    pub fn get(&self, job_id: u32) -> Option<Handle> {
        self.lock().get(&job_id).cloned()
    }

    /// The model that a runner says it runs, whichever attempt of it.
    pub fn by_generation(&self, job_id: u32, generation: &str) -> Option<Handle> {
        self.get(job_id)
            .filter(|handle| generation::same_launch(&handle.launch.generation, generation))
    }

    /// Checks whether this caller may have a model for this job, and says what must come with the launch.
    pub async fn open(
        &self,
        uid: u32,
        request: &v1::OpenModelRequest,
    ) -> Result<v1::OpenModelResponse, OpenError> {
        let _turn = self.turns.of(uid).await;
        let (job, options) = self
            .admit(
                uid,
                request.job_id,
                request.restart_count,
                request.options.clone().unwrap_or_default(),
            )
            .await?;
        let wait_for_ready = options.wait == slurm_serve_recipe::Wait::Ready;
        if let Some(handle) = self.current(&job)? {
            let ready_timeout_s = handle.launch.ready_timeout_s;
            return Ok(v1::OpenModelResponse {
                wait_for_ready,
                ready_timeout_s,
                ..Default::default()
            });
        }
        let folder = &self.world.config.recipes;
        let recipe = plan::admin_recipe_or_own(folder, &options.model, request.has_user_recipe)?;
        Ok(v1::OpenModelResponse {
            launch: true,
            wanted_env: recipe
                .as_ref()
                .map(|recipe| recipe.pass_env.clone())
                .unwrap_or_default(),
            wait_for_ready,
            ready_timeout_s: recipe.map_or(0, |recipe| seconds(recipe.ready_timeout)),
        })
    }

    /// Launches it, unless somebody else of the job was faster.
    pub async fn launch(
        self: &Arc<Self>,
        uid: u32,
        request: &v1::LaunchModelRequest,
    ) -> Result<(), OpenError> {
        let _turn = self.turns.of(uid).await;
        let (job, options) = self
            .admit(
                uid,
                request.job_id,
                request.restart_count,
                request.options.clone().unwrap_or_default(),
            )
            .await?;
        if self.current(&job)?.is_some() {
            return Ok(());
        }
        let internal = |why: String| OpenError::Internal(job.id, why);
        let user = users::by_uid(uid).await.map_err(internal)?;
        let groups = users::groups_of(user.clone()).await.map_err(internal)?;
        let asker = Asker {
            user: user.name,
            groups,
        };
        let plan = plan::make(
            &self.world.config.recipes,
            &self.world.config.own_recipes,
            options,
            &request.user_recipe,
            &asker,
        )?;
        let env = plan.pick_env(&request.env)?;
        let told = self.world.slurm.job(job.id).await.ok().flatten();
        let log_dir = self.world.slurm.stdout_dir(job.id).await.ok().flatten();
        let end_ms = told.as_ref().map_or(job.end_ms, |told| told.end_ms);
        let component = told.and_then(|told| told.component);

        // From here on under the lock, without waiting: two tasks of a job may ask at the same moment.
        let mut handles = self.lock();
        if handles.get(&job.id).is_some_and(|handle| is_of(handle, &job)) {
            return Ok(());
        }
        // Those whose time of remembrance is over.
        handles.retain(|_, handle| !handle.messages.is_closed());
        let alive = handles.values().filter(|handle| !is_over(handle)).count();
        if alive >= self.world.config.max_models {
            return Err(OpenError::NoRoom(
                job.id,
                format!("{alive} models run on this node already (agent.max_models)"),
            ));
        }
        let generation = generation::first(job.id, job.restart_count);
        let given = self.world.ports.take(&generation).ok_or_else(|| {
            OpenError::NoRoom(
                job.id,
                format!(
                    "no free port in agent.ports ({}) or agent.internal_ports",
                    String::from(self.world.config.ports)
                ),
            )
        })?;
        let order = self.order(&job, &plan, env, &given, log_dir);
        let secrets = Secrets::new(order);
        let launch = Launch {
            generation: generation.clone(),
            job_id: job.id,
            component,
            restart_count: job.restart_count,
            uid,
            user: asker.user.clone(),
            cluster: job.cluster.clone(),
            public_name: plan.public_name.clone(),
            aliases: plan.aliases.clone(),
            recipe: plan.recipe.name.clone(),
            task: plan.recipe.task.as_str().to_owned(),
            catalog: plan.catalog_fields(),
            published: plan.published,
            cancel_job_on_failure: plan.cancels_job(),
            internal_port: given.internal,
            port: given.port,
            end_ms,
            launched_ms: crate::clock::now_ms(),
            ready_timeout_s: seconds(plan.recipe.ready_timeout),
            life: Life::new(plan.recipe.max_attempts()).kept(),
            last_failure: None,
            client: None,
            confined: None,
            runner: None,
        };
        let kept = self
            .world
            .store
            .save(&launch)
            .and_then(|()| self.world.store.save_secrets(&generation, &secrets));
        if let Err(e) = kept {
            self.world.store.forget(&generation);
            self.world.ports.release(&generation);
            return Err(OpenError::NoRoom(job.id, e.to_string()));
        }
        handles.insert(
            job.id,
            model::spawn(self.world.clone(), launch, secrets, Some(given.listener)),
        );
        Ok(())
    }

    /// The prolog's word: the job is here. Starts nothing, unless nobody of the job asks for its model.
    pub fn job_started(self: &Arc<Self>, job: Job) {
        let tagged = job
            .options
            .as_ref()
            .is_some_and(|options| !options.model.is_empty());
        if tagged {
            tokio::spawn(allocation::launch_if_nobody_asks(
                Arc::downgrade(self),
                job.clone(),
            ));
        }
        // Should an earlier run of it still be known, its end was missed.
        if let Some(handle) = self
            .get(job.id)
            .filter(|handle| handle.launch.restart_count < job.restart_count)
        {
            let _ = handle.messages.try_send(Message::Event(Event::JobEnded));
        }
        self.jobs.started(job);
    }

    /// Ends a job's model; the job goes on. Says whether there is one.
    pub async fn stop(&self, job_id: u32, cause: Cause) -> bool {
        let Some(handle) = self.get(job_id) else {
            return false;
        };
        let _ = handle.messages.send(Message::Event(Event::Stop(cause))).await;
        true
    }

    /// The job's script is done: the model leaves the catalog. Resolves when it has, or after the settle time.
    pub async fn job_ending(&self, job_id: u32) {
        let Some(handle) = self.get(job_id) else { return };
        let _ = handle
            .messages
            .send(Message::Event(Event::Stop(Cause::JobEnded)))
            .await;
        let mut view = handle.view.clone();
        let released = view.wait_for(|view| view.released);
        let _ = tokio::time::timeout(self.world.config.settle_timeout, released).await;
    }

    /// The job is over on this node.
    pub async fn job_ended(&self, job_id: u32) {
        self.jobs.ended(job_id);
        if let Some(handle) = self.get(job_id) {
            let _ = handle.messages.send(Message::Event(Event::JobEnded)).await;
        }
    }

    /// The job must be known here, and `node` be one of its nodes.
    pub async fn must_be_of(&self, job_id: u32, node: &str) -> Result<(), OpenError> {
        let slurm = &self.world.slurm;
        let said = |e| JobError::Slurm(job_id, e);
        let job = self.jobs.find(job_id, &self.world.node, slurm).await?;
        let is_among = |hosts: Vec<String>| hosts.iter().any(|host| host == node);
        if is_among(slurm.host_names(&job.node_list).await.map_err(said)?) {
            return Ok(());
        }
        // The prolog knows one component of a heterogeneous job alone.
        if let Some(told) = slurm.job(job_id).await.map_err(said)?
            && is_among(slurm.host_names(&told.node_list).await.map_err(said)?)
        {
            return Ok(());
        }
        Err(OpenError::NotOf(job_id, node.to_owned()))
    }

    /// The job, if it is `uid`'s, runs here, and asked for a model; and its options, checked.
    async fn admit(
        &self,
        uid: u32,
        job_id: u32,
        restart_count: u32,
        given: v1::ServeOptions,
    ) -> Result<(Job, ServeOptions), OpenError> {
        let job = self
            .jobs
            .find(job_id, &self.world.node, &self.world.slurm)
            .await?;
        if job.uid != uid {
            return Err(OpenError::NotYours(job_id));
        }
        let job = self.jobs.requeued(job, restart_count);
        let options = match &job.options {
            Some(options) if options.model.is_empty() => return Err(OpenError::NotAsked(job_id)),
            Some(options) => options.clone(),
            None => given,
        };
        let options = plan::check_options(&options)?;
        let hosts = self
            .world
            .slurm
            .host_names(&job.node_list)
            .await
            .map_err(|e| JobError::Slurm(job_id, e))?;
        match hosts.first() {
            Some(first) if *first != self.world.node => Err(OpenError::OtherNode(job_id, first.clone())),
            _ => Ok((job, options)),
        }
    }

    /// The job's model, if it is of this run of the job.
    fn current(&self, job: &Job) -> Result<Option<Handle>, OpenError> {
        match self.get(job.id) {
            Some(handle) if is_of(&handle, job) => Ok(Some(handle)),
            // It would be forgotten while it still runs.
            Some(earlier) if !is_over(&earlier) => Err(OpenError::StillEnding(job.id)),
            _ => Ok(None),
        }
    }

    fn order(
        &self,
        job: &Job,
        plan: &Plan,
        env: std::collections::BTreeMap<String, String>,
        given: &ports::Given,
        log_dir: Option<std::path::PathBuf>,
    ) -> v1::LaunchOrder {
        let config = &self.world.config;
        let work_dir = Some(std::path::PathBuf::from(&job.work_dir)).filter(|dir| dir.is_absolute());
        let mut log_dirs: Vec<String> = Vec::new();
        for dir in log_dir.into_iter().chain(work_dir) {
            let dir = dir.to_string_lossy().into_owned();
            if !log_dirs.contains(&dir) {
                log_dirs.push(dir);
            }
        }
        v1::LaunchOrder {
            public_name: plan.public_name.clone(),
            aliases: plan.aliases.clone(),
            recipe: plan.recipe.to_toml(),
            extra_args: plan.options.args.clone(),
            env: env.into_iter().collect(),
            key: String::new(),
            internal_port: u32::from(given.internal),
            internal_port_count: u32::from(config.internal_ports_per_model),
            log_dirs,
            end_budget_ms: u32::try_from(self.world.end_budget.as_millis()).unwrap_or(u32::MAX),
            gpus: job.gpus.clone(),
            scratch_dir: config.scratch_dir.to_string_lossy().into_owned(),
            job_id: job.id,
            attempt: 1,
            settle_ms: u32::try_from(config.settle_timeout.as_millis()).unwrap_or(u32::MAX),
            peers: match plan.published {
                true => config.peers.iter().map(ToString::to_string).collect(),
                false => Vec::new(),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// A requeued job comes again with the same id and a higher count. One that was looked up, not told of, may have none.
fn is_of(handle: &Handle, job: &Job) -> bool {
    handle.launch.restart_count >= job.restart_count
}

fn is_over(handle: &Handle) -> bool {
    matches!(
        handle.view.borrow().model.state(),
        v1::ModelState::Ended | v1::ModelState::Failed
    )
}
