//! Why a model ends, in the words that reach people: asked for, or a failure with its cause.

use slurm_serve_proto::v1::{Cause, Ending};

/// A failure: what happened, to what, and what to do about it. One line each.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Told apart because each has another remedy.
    pub cause: Cause,
    /// What happened, to what.
    pub text: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

impl Failure {
    /// A failure of this cause.
    pub fn new(cause: Cause, text: impl Into<String>, hint: &str) -> Self {
        Self {
            cause,
            text: text.into(),
            hint: hint.into(),
        }
    }

    /// A fault of ours, or of the node: `what` says which.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::new(Cause::Internal, what, "")
    }
}

/// How it ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Somebody asked.
    Asked(Cause, String),
    /// Nobody did. With the wait status of the engine's first process, where it has ended.
    Failed(Failure, Option<i32>),
}

impl Outcome {
    /// Slurm's SIGTERM. Which of the reasons it was, the agent learns from Slurm.
    pub fn signalled() -> Self {
        let text = "Slurm ended the step: cancelled, out of time, preempted, or the job's script is done";
        Self::Asked(Cause::JobEnded, text.into())
    }

    /// The agent's StopOrder.
    pub fn ordered(cause: Cause) -> Self {
        let text = match cause {
            Cause::Stopped => "stopped on request",
            Cause::JobEnded => "the job's script is done",
            Cause::Cancelled => "the job was cancelled",
            Cause::TimeLimit => "the job's time is over",
            Cause::Preempted => "the job was preempted",
            Cause::Requeued => "the job was requeued",
            _ => "the agent ended it",
        };
        Self::Asked(cause, text.into())
    }

    /// Whether nobody asked for it.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(..))
    }

    /// What happened, in one line.
    pub fn text(&self) -> &str {
        match self {
            Self::Asked(_, text) => text,
            Self::Failed(failure, _) => &failure.text,
        }
    }

    /// For the agent. A failure brings the tail of the log along.
    pub fn ending(&self, log_path: String, log_tail: Vec<String>) -> Ending {
        match self {
            Self::Asked(cause, text) => Ending {
                cause: *cause as i32,
                text: text.clone(),
                log_path,
                ..Ending::default()
            },
            Self::Failed(failure, wait_status) => Ending {
                cause: failure.cause as i32,
                text: failure.text.clone(),
                hint: failure.hint.clone(),
                log_path,
                log_tail,
                wait_status: *wait_status,
            },
        }
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure, None)
    }
}
