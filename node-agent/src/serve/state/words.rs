//! Which ends were asked for, and how they are told.

use slurm_serve_proto::v1::{Cause, Ending};

/// Ends that somebody asked for, in words.
pub fn asked_ending(cause: Cause) -> Ending {
    let text = match cause {
        Cause::Cancelled => "the job was cancelled",
        Cause::TimeLimit => "the job reached its time limit",
        Cause::Preempted => "the job was preempted",
        Cause::Requeued => "the job was requeued",
        Cause::Stopped => "it was stopped with sserve stop",
        _ => "the job ended",
    };
    Ending {
        cause: cause.into(),
        text: text.into(),
        ..Ending::default()
    }
}

/// Did somebody ask for an end with this cause? All others are failures.
pub fn is_asked(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::JobEnded
            | Cause::Cancelled
            | Cause::TimeLimit
            | Cause::Preempted
            | Cause::Requeued
            | Cause::Stopped
    )
}
