//! An agent tells catalogs of its own node's models.

use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1::{Model, ModelState};

use super::{Entry, Push};
use crate::catalog::Hub;
use crate::slurm::Slurm;

/// Between two questions for the cluster's name while slurmctld is away.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Tells of everything that the hub announces, and acknowledges once the catalogs agree, or could not within `patience`. Ends never.
pub async fn follow(push: Arc<Push>, hub: Arc<Hub>, node: String, patience: Duration) {
    let Some(mut watcher) = hub.watch() else {
        return tracing::error!("too many watchers (agent.max_watchers): the catalogs are told nothing");
    };
    let mut revision = watcher.snapshot().revision;
    loop {
        let entries = hub.models().iter().filter_map(entry).collect();
        let told = push.tell(entries, [node.clone()]);
        let (push, acknowledge) = (push.clone(), watcher.acknowledger());
        // A catalog that is slow with one goodbye holds up no other.
        tokio::spawn(async move {
            push.settled(told, patience).await;
            acknowledge(revision);
        });
        revision = watcher.next().await.revision;
    }
}

fn entry(model: &Model) -> Option<Entry> {
    let is_there = model.published && model.state() == ModelState::Ready;
    is_there.then(|| Entry::of(model, &model.key)).flatten()
}

/// Slurm's ClusterName: as set, else as slurmctld says once it answers.
pub async fn cluster(set: &str, slurm: &Slurm) -> String {
    if !set.is_empty() {
        return set.to_owned();
    }
    let mut said = String::new();
    loop {
        let why = match slurm.conf().await {
            Ok(conf) => match conf.get("ClusterName") {
                Some(name) => return name.to_owned(),
                None => "no ClusterName in `scontrol show config`".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if why != said {
            tracing::warn!("catalogs wait for the cluster's name: {why}; agent.cluster_name would tell it");
            said = why;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
