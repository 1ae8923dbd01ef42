//! What a model's task keeps on disk, and what it tells the world.

use slurm_serve_proto::v1::{self, ModelState};

use super::Task;

impl Task {
    pub(super) fn keep(&self) {
        if let Err(e) = self.world.store.save(&self.launch) {
            tracing::error!("{e}: after a restart of the agent this model will be ended");
        }
    }

    /// Tells the world how things stand. Returns the revision in the catalog.
    pub(super) fn publish(&mut self) -> u64 {
        let model = self.model();
        self.view.send_modify(|view| {
            view.revision += 1;
            view.log_note = self.facts.log_note.clone();
            view.model = model.clone();
        });
        self.world.hub.set(model)
    }

    pub(super) fn model(&self) -> v1::Model {
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
