//! `task_exit` of the batch or interactive step, as root: the job is over, its model leaves the catalog while it still answers.
//!
//! No other step's end ever ends a model.

use std::time::Duration;

use slurm_serve_proto::v1::JobEndingRequest;
use slurm_serve_proto::v1::hooks_client::HooksClient;

use crate::rpc::{Agent, CallError};

/// How long the end of a tagged job may be held up.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// SLURM_INTERACTIVE_STEP (slurm.h).
pub const INTERACTIVE_STEP: u32 = 0xffff_fffa;
/// SLURM_BATCH_SCRIPT (slurm.h).
pub const BATCH_STEP: u32 = 0xffff_fffb;

/// Whether the job ends with this step.
pub fn ends_the_job(step_id: u32) -> bool {
    step_id == BATCH_STEP || step_id == INTERACTIVE_STEP
}

/// `JobEnding`. Answered once the model has left the catalog; `wait_status` is that of the batch script.
pub fn ending(agent: &Agent, job_id: u32, wait_status: i32) -> Result<(), CallError> {
    let request = JobEndingRequest { job_id, wait_status };
    agent
        .call(DEADLINE, async |channel| {
            HooksClient::new(channel).job_ending(request).await
        })
        .map(|_| ())
}
