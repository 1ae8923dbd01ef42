//! A tagged allocation whose owner starts no step: `salloc --serve-model=…`, with its shell on the login node.
//!
//! Usually a task of the job asks for the model (task_init). Here nobody does, and Slurm tells of the job only by its prolog. So, once the
//! job has been known for `allocation_wait`, Slurm is asked whether it runs and has had a step; if it runs without one, the agent launches
//! the model itself. That launch brings no environment of the job's and no recipe of the user's own: those come with a step.
//!
//! ```text
//! prolog ──wait──▶ asked for already, over, another node's, has a step ──▶ nothing to do
//!            ▲ └─▶ not running yet, Slurm silent ──┐
//!            └───────── twice the wait ────────────┘   until the job's epilog
//! ```

use std::sync::{Arc, Weak};
use std::time::Duration;

use slurm_serve_proto::v1;

use super::{Models, OpenError};
use crate::job::Job;

/// The longest pause between two questions to Slurm.
const LONGEST: Duration = Duration::from_secs(60);

/// What a look at the allocation came to.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Done,
    Again,
}

/// Launches `job`'s model if nobody of the job asks for it. Ends with the job.
pub async fn launch_if_nobody_asks(models: Weak<Models>, job: Job) {
    let Some(mut pause) = models.upgrade().map(|models| models.world.config.allocation_wait) else {
        return;
    };
    loop {
        tokio::time::sleep(pause).await;
        let Some(models) = models.upgrade() else { return };
        if look(&models, &job).await == Look::Done {
            return;
        }
        pause = (pause * 2).min(LONGEST);
    }
}

async fn look(models: &Arc<Models>, job: &Job) -> Look {
    let still_here = models
        .jobs
        .known(job.id)
        .is_some_and(|known| known.restart_count == job.restart_count);
    if !still_here
        || models
            .get(job.id)
            .is_some_and(|handle| super::is_of(&handle, job))
    {
        return Look::Done;
    }
    match is_bare(models, job).await {
        Ok(true) => {}
        Ok(false) => return Look::Done,
        Err(why) => {
            tracing::debug!(
                job = job.id,
                "not known yet whether its allocation has a step: {why}"
            );
            return Look::Again;
        }
    }
    let request = v1::LaunchModelRequest {
        job_id: job.id,
        restart_count: job.restart_count,
        options: job.options.clone(),
        ..Default::default()
    };
    match models.launch(job.uid, &request).await {
        Ok(()) => {
            tracing::info!(
                job = job.id,
                "an allocation without a step: launched by the agent"
            );
            Look::Done
        }
        Err(e @ (OpenError::NoRoom(..) | OpenError::Internal(..))) => {
            tracing::warn!("{e}; tried again");
            Look::Again
        }
        Err(e) => {
            tracing::info!("{e}; an allocation without a step gets no model by itself, its first step may");
            Look::Done
        }
    }
}

/// Does the job run, on this node first, without ever a step? The error says why that is not known (yet).
async fn is_bare(models: &Models, job: &Job) -> Result<bool, String> {
    let slurm = &models.world.slurm;
    let said = |e: crate::slurm::SlurmError| e.to_string();
    let hosts = slurm.host_names(&job.node_list).await.map_err(said)?;
    if hosts.first() != Some(&models.world.node) {
        return Ok(false);
    }
    match slurm.job(job.id).await.map_err(said)? {
        // A heterogeneous job has one model, that of its first component.
        Some(told) if told.component.is_some_and(|component| component > 0) => return Ok(false),
        Some(told) if told.state == "RUNNING" => {}
        Some(told) => return Err(format!("it is {}", told.state)),
        None => return Ok(false),
    }
    Ok(!slurm.has_step(job.id).await.map_err(said)?)
}
