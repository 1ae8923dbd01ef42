//! What Slurm knows: the jobs of this node, tagged or not.
//!
//! A record is made by the prolog, or, for a job whose prolog found no agent, by asking Slurm when somebody asks for its model. It is
//! dropped by the epilog. Nothing here starts anything.

use std::collections::HashMap;
use std::sync::Mutex;

use slurm_serve_proto::v1;

use crate::slurm::{Slurm, SlurmError};

/// A job on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Slurm's job id.
    pub id: u32,
    /// Owner.
    pub uid: u32,
    /// Its name; empty where the prolog was missed.
    pub user: String,
    /// How often it was requeued.
    pub restart_count: u32,
    /// ClusterName; empty where the prolog was missed.
    pub cluster: String,
    /// All its nodes, as Slurm writes it.
    pub node_list: String,
    /// SLURM_JOB_GPUS on this node; empty where unknown or none.
    pub gpus: String,
    /// CUDA_VISIBLE_DEVICES as the prolog had it; empty where unknown or none.
    pub cuda_visible_devices: String,
    /// Where it was submitted.
    pub work_dir: String,
    /// Milliseconds since the epoch; 0 = unknown or no limit.
    pub end_ms: i64,
    /// What the prolog saw of our options; `None` where the prolog was missed, an empty model where the job asked for none.
    pub options: Option<v1::ServeOptions>,
}

/// Why a job's record cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Slurm does not know it, or not here.
    #[error("job {0} is not running on this node")]
    NotHere(u32),
    /// Slurm did not answer.
    #[error("job {0}: {1}")]
    Slurm(u32, SlurmError),
}

/// All jobs of this node that are known of.
#[derive(Debug, Default)]
pub struct Jobs {
    known: Mutex<HashMap<u32, Job>>,
}

impl Jobs {
    /// The prolog's word. A requeued job comes again with the same id.
    pub fn started(&self, job: Job) {
        self.lock().insert(job.id, job);
    }

    /// The epilog's word.
    pub fn ended(&self, job_id: u32) {
        self.lock().remove(&job_id);
    }

    /// A job as the prolog told of it.
    pub fn known(&self, job_id: u32) -> Option<Job> {
        self.lock().get(&job_id).cloned()
    }

    /// A job as the prolog told of it, else as Slurm does: it must be running on `node`. Changes nothing that is known already: whoever asks
    /// need not be in it.
    pub async fn find(&self, job_id: u32, node: &str, slurm: &Slurm) -> Result<Job, JobError> {
        if let Some(job) = self.known(job_id) {
            return Ok(job);
        }
        let told = slurm.job(job_id).await.map_err(|e| JobError::Slurm(job_id, e))?;
        let told = told
            .filter(|job| job.state == "RUNNING")
            .ok_or(JobError::NotHere(job_id))?;
        let hosts = slurm
            .host_names(&told.node_list)
            .await
            .map_err(|e| JobError::Slurm(job_id, e))?;
        if !hosts.iter().any(|host| host == node) {
            return Err(JobError::NotHere(job_id));
        }
        let job = Job {
            id: job_id,
            uid: told.uid,
            user: String::new(),
            restart_count: 0,
            cluster: String::new(),
            node_list: told.node_list,
            gpus: String::new(),
            cuda_visible_devices: String::new(),
            work_dir: told.work_dir,
            end_ms: told.end_ms,
            options: None,
        };
        // The prolog may have come meanwhile; it knows more.
        Ok(self.lock().entry(job_id).or_insert(job).clone())
    }

    /// The owner's word, from within the job, on how often it was requeued: 22.05 runs neither epilog nor prolog where a requeued job comes
    /// back at once; it may have other GPUs then.
    pub fn requeued(&self, mut job: Job, restart_count: u32) -> Job {
        if restart_count > job.restart_count {
            job.restart_count = restart_count;
            job.gpus.clear();
            job.cuda_visible_devices.clear();
            if let Some(known) = self.lock().get_mut(&job.id) {
                known.clone_from(&job);
            }
        }
        job
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Job>> {
        self.known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_which_no_prolog_told_is_known_by_its_asker() {
        let jobs = Jobs::default();
        jobs.started(Job {
            id: 7,
            uid: 2001,
            user: "alice".into(),
            restart_count: 1,
            cluster: "lab".into(),
            node_list: "n1".into(),
            gpus: "0".into(),
            cuda_visible_devices: "0".into(),
            work_dir: "/".into(),
            end_ms: 0,
            options: None,
        });
        let told = jobs.known(7).unwrap();
        let same = jobs.requeued(told.clone(), 0);
        assert_eq!(same, told);
        let next = jobs.requeued(told, 2);
        assert_eq!(
            (next.restart_count, next.gpus.as_str()),
            (2, ""),
            "it may have others now"
        );
        assert_eq!(jobs.known(7), Some(next));
    }
}
