//! Inside the job: the runner, the engine's process, and the guard in front of it. `slurm-serve step`, started by the agent through srun as
//! the job's user.
//!
//! | file | what it is |
//! |---|---|
//! | `runner` | the task that owns everything and goes through the phases |
//! | `link` | the line to the agent |
//! | `engine/`, `processes`, `private`, `leftovers` | vLLM's process, what belongs to it, what it leaves behind |
//! | `checks`, `ready`, `ask` | what is known before loading, and when loading is over |
//! | `liveness`, `awake` | whether an engine that lives also answers |
//! | `guard/` | the reverse proxy on the job's port |
//! | `log/` | what the engine prints |
//! | `ending`, `outcome` | how long an end may take, and why it came |
//!
//! The runner is trusted by the agent only for its own liveness and its port: everything that others see of a model comes from the agent.

mod announcement;
mod ask;
mod awake;
pub mod checks;
mod ending;
mod engine;
pub mod guard;
mod launch;
mod leftovers;
mod link;
mod liveness;
mod log;
mod oom;
mod outcome;
mod private;
mod processes;
mod ready;
mod runner;

use std::process::ExitCode;
use std::time::Duration;

use announcement::Announcement;
pub use ending::Parts;
use tokio::signal::unix::{SignalKind, signal};

/// `slurm-serve step`: everything it needs comes in the environment that the agent gives to srun, so there is nothing to say here.
#[derive(Debug, Clone, clap::Args)]
pub struct StepArgs {}

/// What `sbatch --signal=` and `scancel --signal=` send to all steps of a job: a word from the user to his own programs, which would kill a
/// runner that did not listen.
const MEANT_FOR_OTHERS: [fn() -> SignalKind; 4] = [
    SignalKind::user_defined1,
    SignalKind::user_defined2,
    SignalKind::hangup,
    SignalKind::alarm,
];

/// Runs the step to its end: 0 if somebody asked for it, 1 if it failed.
///
/// Makes a runtime of its own and must be called before there is any other thread: it takes its secrets out of the environment, and the engine's
/// life is bound to the calling thread.
pub fn main(_: StepArgs) -> ExitCode {
    match prepared() {
        Ok((runtime, announcement)) => {
            let code = runtime.block_on(runner::run(announcement));
            // A write that hangs on some file system must not keep the step.
            runtime.shutdown_timeout(Duration::from_millis(100));
            code
        }
        Err(line) => {
            eprintln!("slurm-serve step: {line}");
            ExitCode::FAILURE
        }
    }
}

fn prepared() -> Result<(tokio::runtime::Runtime, Announcement), String> {
    let announcement = Announcement::take()?;
    // Orphans of the engine come to us, so that none gets lost.
    nix::sys::prctl::set_child_subreaper(true).map_err(|e| format!("cannot adopt orphans: {e}"))?;
    crate::limits::raise_descriptors();
    // One thread: the guard's work is small and waking another would cost more.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("cannot start: {e}"))?;
    let inside = runtime.enter();
    for kind in MEANT_FOR_OTHERS {
        // Once listened for, a signal never again does what it does by default, even if nobody listens any more.
        drop(signal(kind()).map_err(|e| format!("cannot listen for signals: {e}"))?);
    }
    drop(inside);
    Ok((runtime, announcement))
}
