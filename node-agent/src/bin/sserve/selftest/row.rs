//! What is tested, in which order, and what comes out.

use clap::ValueEnum;
use serde::Serialize;

use super::bench::Bench;
use super::{endings, faults, surroundings};

/// One thing to be tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// A model is ready when the script starts, and answers it
    Serve,
    /// The engine sees the job's GPUs, those and no others
    Devices,
    /// The engine runs in the job's cgroup, in a step of its own
    Cgroup,
    /// The srun client of the engine's step is held by a scope, or a cgroup of its own
    SrunBox,
    /// The script's end ends the model
    ScriptEnds,
    /// The script's exit code is the job's
    ExitCode,
    /// scancel ends it
    Scancel,
    /// What is in flight at scancel is finished within KillWait
    KillWait,
    /// The time limit ends it
    TimeLimit,
    /// scancel of the server's step ends the model, not the job
    ServerStep,
    /// An engine that dies is told, and the job goes on
    EngineKilled,
    /// A runner that dies takes its engine with it
    RunnerKilled,
    /// A restart of the agent loses no model and no request
    AgentRestart,
    /// No process, folder or key of any of these jobs is left
    LeftOvers,
    /// The node has not been drained
    NodeState,
}

/// How it came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    Pass,
    Fail,
    Skip,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
        }
    }
}

/// A verdict and what it stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// One line.
    pub evidence: String,
}

impl Outcome {
    pub fn pass(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Pass, evidence.into())
    }

    pub fn fail(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, evidence.into())
    }

    pub fn skip(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Skip, evidence.into())
    }

    fn new(verdict: Verdict, evidence: String) -> Self {
        Self { verdict, evidence }
    }
}

impl Row {
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// As it is printed and typed: `engine-killed`.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// Tests it. What goes wrong on the way is a FAIL.
    pub async fn run(self, bench: &Bench) -> Outcome {
        let done = match self {
            Self::Serve => endings::serve(bench).await,
            Self::Devices => surroundings::devices(bench),
            Self::Cgroup => surroundings::cgroup(bench),
            Self::SrunBox => surroundings::srun_box(bench).await,
            Self::ScriptEnds => endings::script_ends(bench).await,
            Self::ExitCode => endings::exit_code(bench).await,
            Self::Scancel => endings::scancel(bench).await,
            Self::KillWait => endings::kill_wait(bench).await,
            Self::TimeLimit => endings::time_limit(bench).await,
            Self::ServerStep => endings::server_step(bench).await,
            Self::EngineKilled => faults::engine_killed(bench).await,
            Self::RunnerKilled => faults::runner_killed(bench).await,
            Self::AgentRestart => faults::agent_restart(bench).await,
            Self::LeftOvers => surroundings::left_overs(bench).await,
            Self::NodeState => surroundings::node_state(bench).await,
        };
        // The next row begins with an empty node, as far as it is ours.
        bench.cancel_all().await;
        done.unwrap_or_else(|error| Outcome::fail(format!("{error:#}")))
    }
}
