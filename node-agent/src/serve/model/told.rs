//! What a model's task keeps on disk, and what it tells the world.

use slurm_serve_proto::v1::{self, ModelState};

use slurm_serve_recipe::CatalogFields;

use super::Task;
use crate::generation;

/// As the wire has it; nothing, if there is nothing to say.
fn catalog(fields: &CatalogFields) -> Option<v1::CatalogFields> {
    (*fields != CatalogFields::default()).then(|| v1::CatalogFields {
        team: fields.team.clone(),
        access_groups: fields.access_groups.clone(),
        input_cost_per_token: fields.input_cost_per_token,
        output_cost_per_token: fields.output_cost_per_token,
        max_input_tokens: fields.max_input_tokens,
        max_output_tokens: fields.max_output_tokens,
    })
}

impl Task {
    pub(super) fn keep(&self) {
        if let Err(e) = self.world.store.save(&self.launch) {
            tracing::error!("{e}: after a restart of the agent this model will be ended");
        }
    }

    pub(super) fn keep_secrets(&self) -> Result<(), String> {
        let kept = self
            .world
            .store
            .save_secrets(&self.launch.generation, &self.secrets);
        kept.map_err(|e| e.to_string())
    }

    /// Of the present attempt.
    pub(super) fn generation(&self) -> String {
        generation::of_attempt(&self.launch.generation, self.life.attempt)
    }

    /// Of the attempt that the present run began with: what its runner calls itself.
    pub(super) fn run_generation(&self) -> String {
        generation::of_attempt(&self.launch.generation, self.life.run)
    }

    /// Tells the world how things stand. Returns the revision in the catalog.
    pub(super) fn publish(&mut self) -> u64 {
        let model = self.model();
        self.view.send_modify(|view| {
            view.revision += 1;
            view.log_note = self.facts.log_note.clone();
            view.model = model.clone();
        });
        let before = std::mem::replace(&mut self.announced, model.generation.clone());
        let revision = self.world.hub.set(model);
        if before != self.announced && !before.is_empty() {
            self.world.hub.remove(&before);
        }
        revision
    }

    pub(super) fn model(&self) -> v1::Model {
        let (launch, facts) = (&self.launch, &self.facts);
        let mut ending = self.life.ending.clone();
        if let Some(ending) = &mut ending
            && ending.log_path.is_empty()
        {
            ending.log_path = facts.log_path.clone();
        }
        // Also while it restarts: the address stays, and the job's script has it.
        let has_port =
            launch.port != 0 && !matches!(self.life.state, ModelState::Requested | ModelState::Launching);
        v1::Model {
            name: launch.public_name.clone(),
            aliases: launch.aliases.clone(),
            recipe: launch.recipe.clone(),
            owner: launch.user.clone(),
            owner_uid: launch.uid,
            cluster: launch.cluster.clone(),
            node: self.world.node.clone(),
            job_id: launch.job_id,
            generation: self.generation(),
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
            progress: self.progress(),
            engine_version: facts.engine_version.clone(),
            ending,
            key: if self.life.is_final() {
                String::new()
            } else {
                self.secrets.key.clone()
            },
            log_path: facts.log_path.clone(),
            attempt: self.life.attempt,
            max_attempts: self.life.max_attempts,
            last_failure: self.life.last_failure.clone(),
            retires_ms: self.retires_ms(),
            catalog: catalog(&launch.catalog),
        }
    }

    /// What its owner should know of a state that says little by itself.
    fn progress(&self) -> String {
        match self.life.state {
            ModelState::Unresponsive if self.facts.silent_since_ms != 0 => {
                "its engine is alive and answers nothing".into()
            }
            ModelState::Unresponsive => "nothing is heard of its runner; is the job suspended?".into(),
            ModelState::Restarting => {
                let (attempt, of) = (self.life.attempt, self.life.max_attempts);
                let why = self
                    .life
                    .last_failure
                    .as_ref()
                    .map_or("", |failure| &failure.text);
                format!("attempt {attempt} of {of}; the one before failed: {why}")
            }
            _ => self.facts.progress.clone(),
        }
    }
}
