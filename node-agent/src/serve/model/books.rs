//! What Slurm's books say of a model's job: when it ends, and why it did.

use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1::Cause;
use tokio::sync::mpsc;

use super::{LOOK_EVERY, Message, Task};
use crate::serve::state::{Event, asked_ending};
use crate::serve::world::World;

/// How often, and at what distance, Slurm is asked why a job ended.
const CAUSE_QUESTIONS: u32 = 30;
const CAUSE_PAUSE: Duration = Duration::from_secs(1);

/// Near the end Slurm is asked so many times as often.
const NEAR: u32 = 6;

/// What was asked of Slurm's books, and what the life was told of the answer.
#[derive(Debug, Default)]
pub(super) struct Books {
    asking: bool,
    /// Looks since the last answer.
    looks: u32,
    /// The life knows that the end is near.
    near: bool,
}

impl Task {
    /// When it leaves the catalog because its job's end is near, in milliseconds since the epoch; 0 = no limit known.
    pub(super) fn retires_ms(&self) -> i64 {
        retires_ms(
            self.launch.launched_ms,
            self.launch.end_ms,
            self.world.config.retire_before,
        )
    }

    /// What was known of the end before the agent was restarted holds until Slurm says otherwise.
    pub(super) fn recover_end(&mut self) {
        self.books.near = self.is_end_near();
        self.life.step(Event::EndNear(self.books.near));
    }

    fn is_end_near(&self) -> bool {
        let retires = self.retires_ms();
        retires != 0 && retires <= crate::clock::now_ms()
    }

    /// The end comes nearer, and whoever may move it can have done so. Before a model retires Slurm is asked, so that one whose limit was
    /// raised never does.
    pub(super) async fn look_at_the_clock(&mut self) {
        if self.books.asking {
            return;
        }
        self.books.looks += 1;
        let near = self.is_end_near();
        let every = self.world.config.end_time_every / if near { NEAR } else { 1 };
        if near && !self.books.near || LOOK_EVERY * self.books.looks >= every {
            self.ask_slurm();
        } else {
            self.heed_the_end().await;
        }
    }

    /// Slurm has answered, or could not.
    pub(super) async fn slurm_said(&mut self, end_ms: Option<i64>) {
        self.books.asking = false;
        if let Some(end_ms) = end_ms.filter(|end_ms| *end_ms != self.launch.end_ms) {
            tracing::info!(
                generation = self.generation(),
                job = self.launch.job_id,
                end_ms,
                "the job's end time is another now"
            );
            self.launch.end_ms = end_ms;
            self.keep();
            self.publish();
        }
        self.heed_the_end().await;
    }

    async fn heed_the_end(&mut self) {
        let near = self.is_end_near();
        if near != self.books.near {
            self.books.near = near;
            self.event(Event::EndNear(near)).await;
        }
    }

    fn ask_slurm(&mut self) {
        (self.books.asking, self.books.looks) = (true, 0);
        let (world, job_id, me) = (self.world.clone(), self.launch.job_id, self.me.clone());
        tokio::spawn(async move {
            let end_ms = match world.slurm.job(job_id).await {
                Ok(job) => job.map(|job| job.end_ms),
                Err(e) => {
                    tracing::debug!("the end time of job {job_id} was not read again: {e}");
                    None
                }
            };
            if let Some(me) = me.upgrade() {
                let _ = me.send(Message::EndsAt(end_ms)).await;
            }
        });
    }
}

/// The moment when a model retires: `lead` before its job's end, and never more than the last tenth of what it has.
fn retires_ms(launched_ms: i64, end_ms: i64, lead: Duration) -> i64 {
    if end_ms == 0 {
        return 0;
    }
    let lead = i64::try_from(lead.as_millis()).unwrap_or(i64::MAX);
    let tenth = end_ms.saturating_sub(launched_ms).max(0) / 10;
    end_ms - lead.min(tenth)
}

/// What of a model's end Slurm's books have to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Its job ended, or Slurm ended its step: the hooks and the signal see only that.
    WhyEnded,
    /// Its runner was gone when this agent came: it may have been lost, or have ended with its job while no agent was there.
    WhyGone,
}

/// Asks Slurm until the job is past COMPLETING, or it shows that the job goes on.
pub(super) async fn find_cause(
    world: Arc<World>,
    job_id: u32,
    question: Question,
    me: mpsc::WeakSender<Message>,
) {
    let (mut asked, mut runs) = (0_u32, false);
    let ended = loop {
        match world.slurm.job(job_id).await {
            Ok(Some(job)) if job.state == "RUNNING" && question == Question::WhyGone => return,
            // Not in the books yet: task_exit comes before slurmctld hears of it.
            Ok(Some(job)) if job.state == "COMPLETING" || job.state == "RUNNING" => {
                runs = job.state == "RUNNING";
            }
            Ok(Some(job)) => break ended_by(&job.state),
            Ok(None) => return,
            Err(e) => tracing::debug!("why job {job_id} ended is not known: {e}"),
        }
        asked += 1;
        if asked == CAUSE_QUESTIONS {
            if !runs {
                return;
            }
            break (
                Cause::Cancelled,
                "the server's step was cancelled; its job goes on".into(),
            );
        }
        tokio::time::sleep(CAUSE_PAUSE).await;
    };
    if question == Question::WhyGone && ended.0 == Cause::JobEnded {
        // It may as well have been lost before its job ended.
        return;
    }
    if let Some(me) = me.upgrade() {
        let _ = me.send(Message::JobEndedBy(ended.0, ended.1)).await;
    }
}

/// Of a job state as squeue prints it. A job that was asked to run again is pending.
fn ended_by(state: &str) -> (Cause, String) {
    let cause = match state {
        "CANCELLED" => Cause::Cancelled,
        "TIMEOUT" | "DEADLINE" => Cause::TimeLimit,
        "PREEMPTED" => Cause::Preempted,
        "PENDING" | "REQUEUED" | "CONFIGURING" => Cause::Requeued,
        "COMPLETED" => Cause::JobEnded,
        other => return (Cause::JobEnded, format!("the job ended: {other}")),
    };
    (cause, asked_ending(cause).text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_of_the_jobs_end_is_told() {
        assert_eq!(ended_by("TIMEOUT").0, Cause::TimeLimit);
        assert_eq!(ended_by("PENDING").0, Cause::Requeued);
        assert_eq!(ended_by("COMPLETED"), (Cause::JobEnded, "the job ended".into()));
        assert_eq!(
            ended_by("NODE_FAIL"),
            (Cause::JobEnded, "the job ended: NODE_FAIL".into())
        );
    }

    #[test]
    fn a_model_retires_a_minute_before_the_end_and_a_short_one_keeps_nine_tenths() {
        let (minute, hour) = (60_000, 3_600_000);
        let lead = Duration::from_secs(60);
        assert_eq!(retires_ms(0, 8 * hour, lead), 8 * hour - minute);
        assert_eq!(retires_ms(0, 10 * minute, lead), 9 * minute);
        assert_eq!(retires_ms(0, 2 * minute, lead), 2 * minute - 12_000);
        assert_eq!(retires_ms(hour, hour + 5, lead), hour + 5);
        assert_eq!(
            retires_ms(hour, minute, lead),
            minute,
            "an end before the launch is one that has come"
        );
        assert_eq!(retires_ms(0, 0, lead), 0, "no limit");
        assert_eq!(retires_ms(0, hour, Duration::ZERO), hour);
    }
}
