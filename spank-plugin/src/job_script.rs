//! The helpers `slurmstepd spank prolog|epilog`: as root, on every node of the job, for every job, tagged or not.
//!
//! They tell the agent and return. Whatever goes wrong here, the job goes on: a failing prolog would drain the node. An untagged
//! job pays one connect to a Unix socket, at most 0.2 s if the agent hangs.

use std::time::Duration;

use slurm_serve_proto::v1::hooks_client::HooksClient;
use slurm_serve_proto::v1::{JobEndedRequest, JobStartedRequest, ServeOptions};

use crate::rpc::{Agent, CallError};

/// How long prolog and epilog may hold up a job that asked for a model.
pub const TAGGED: Duration = Duration::from_secs(1);
/// How long they may hold up any other.
pub const UNTAGGED: Duration = Duration::from_millis(200);

/// How long the agent may take, by whether the job asked for a model.
pub fn deadline(options: &ServeOptions) -> Duration {
    if options.model.is_empty() {
        UNTAGGED
    } else {
        TAGGED
    }
}

/// `JobStarted`: the agent learns of the job. Records only, starts nothing.
pub fn started(agent: &Agent, request: JobStartedRequest) -> Result<(), CallError> {
    let deadline = request.options.as_ref().map_or(UNTAGGED, deadline);
    agent
        .call(deadline, async |channel| {
            HooksClient::new(channel).job_started(request).await
        })
        .map(|_| ())
}

/// `JobEnded`: whatever the agent still knows of the job on this node is over.
pub fn ended(agent: &Agent, job_id: u32, options: &ServeOptions) -> Result<(), CallError> {
    agent
        .call(deadline(options), async |channel| {
            HooksClient::new(channel)
                .job_ended(JobEndedRequest { job_id })
                .await
        })
        .map(|_| ())
}

/// What the prolog's environment says of the job. `var` reads it.
///
/// 22.05 has no SLURM_JOB_END_TIME and calls the node list SLURM_NODELIST; later releases set both names.
pub fn started_request(
    var: impl Fn(&str) -> Option<String>,
    ids: JobIds,
    options: ServeOptions,
) -> JobStartedRequest {
    let text = |name: &str| var(name).unwrap_or_default();
    let node_list = match text("SLURM_JOB_NODELIST") {
        list if list.is_empty() => text("SLURM_NODELIST"),
        list => list,
    };
    JobStartedRequest {
        job_id: ids.job_id,
        uid: ids.uid,
        gid: ids.gid,
        user: text("SLURM_JOB_USER"),
        restart_count: text("SLURM_JOB_RESTART_COUNT").parse().unwrap_or(0),
        cluster: text("SLURM_CLUSTER_NAME"),
        node: text("SLURMD_NODENAME"),
        node_list,
        gpus: text("SLURM_JOB_GPUS"),
        work_dir: text("SLURM_JOB_WORK_DIR"),
        partition: text("SLURM_JOB_PARTITION"),
        end_time: text("SLURM_JOB_END_TIME").parse().unwrap_or(0),
        options: Some(options),
        cuda_visible_devices: text("CUDA_VISIBLE_DEVICES"),
    }
}

/// Who the job is and whose; from SPANK, not from the environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct JobIds {
    /// Slurm's job id.
    pub job_id: u32,
    /// The job's user.
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: JobIds = JobIds {
        job_id: 7,
        uid: 1000,
        gid: 100,
    };

    fn request(vars: &[(&str, &str)]) -> JobStartedRequest {
        let var = |name: &str| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        started_request(var, IDS, ServeOptions::default())
    }

    #[test]
    fn what_old_releases_do_not_say_stays_empty() {
        let old = request(&[("SLURM_NODELIST", "n[1-2]"), ("SLURM_JOB_RESTART_COUNT", "2")]);
        assert_eq!(
            (old.node_list.as_str(), old.end_time, old.restart_count),
            ("n[1-2]", 0, 2)
        );
        assert_eq!((old.job_id, old.uid, old.gid), (7, 1000, 100));
        let new = request(&[("SLURM_JOB_NODELIST", "n1"), ("SLURM_JOB_END_TIME", "1700000000")]);
        assert_eq!((new.node_list.as_str(), new.end_time), ("n1", 1_700_000_000));
    }

    #[test]
    fn only_a_tagged_job_may_be_held_up_longer() {
        assert_eq!(deadline(&ServeOptions::default()), UNTAGGED);
        let tagged = ServeOptions {
            model: "m".into(),
            ..Default::default()
        };
        assert_eq!(deadline(&tagged), TAGGED);
    }
}
