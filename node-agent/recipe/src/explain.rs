//! Why an engine failed, from what it left in its log.

use crate::recipe::Recipe;

/// What kind of failure it was; each has another remedy. The subset of the contract's `Cause` that a log can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CauseKind {
    /// Not enough free memory on a GPU.
    GpuMemory,
    /// Fewer GPUs than the engine was told to use.
    TooFewGpus,
    /// The weights are missing, unreadable or truncated.
    WeightsMissing,
    /// A model hub was needed and is gated or out of reach.
    HubUnreachable,
    /// A tokenizer or vocabulary file is missing.
    TokenizerMissing,
    /// The engine refused one of its arguments.
    UnknownArgument,
    /// The engine's program, or a part of it, is not on this node.
    EngineNotFound,
    /// The engine is older than the model needs.
    EngineTooOld,
    /// The engine ended by itself.
    EngineDied,
    /// Killed by the job's memory limit.
    OutOfMemory,
}

/// A failure in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// What kind it was.
    pub cause: CauseKind,
    /// One line: what happened, to what.
    pub text: String,
    /// One line: what to do about it.
    pub hint: String,
}

/// Explains an engine's end that nobody asked for. It never decides a state: that the engine has ended is known before.
pub fn explain(log_tail: &[String], wait_status: Option<i32>, recipe: &Recipe) -> Explained {
    let _ = (log_tail, wait_status);
    Explained {
        cause: CauseKind::EngineDied,
        text: format!("the engine of {} ended by itself", recipe.name),
        hint: "its log says more".into(),
    }
}
