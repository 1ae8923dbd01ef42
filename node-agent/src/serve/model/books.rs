//! What Slurm's books say of a model's job: when it ends, and why it did.

use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1::Cause;
use tokio::sync::mpsc;

use super::{Message, Task};
use crate::serve::world::World;

/// How often, and at what distance, Slurm is asked why a job ended.
const CAUSE_QUESTIONS: u32 = 30;
const CAUSE_PAUSE: Duration = Duration::from_secs(1);

impl Task {
    /// The time limit may have been changed, or the job be over without our having been told.
    pub(super) fn ask_slurm(&self) {
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
}

/// Why the job ended. The hooks see only that it does; Slurm's books say it once the job is past COMPLETING.
pub(super) async fn find_cause(world: Arc<World>, job_id: u32, me: mpsc::WeakSender<Message>) {
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
