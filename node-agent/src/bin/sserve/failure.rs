//! How a verb ends badly: one line for people and an exit code for scripts.

use std::process::ExitCode;

/// What the exit codes mean; shown below `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done, or what was waited for is so
  1    failed, or the model ended badly
  2    the command line is wrong
  3    no such model, job or recipe, or it is not yours
  4    the agent (or gateway) that should know cannot be reached
  124  --timeout passed";

/// How it ended, where it is not simply done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Whoever read the output has seen enough (`sserve list | head`). No failure, and nobody is told.
    ReaderLeft = 0,
    /// It failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Nothing of that name or number, or another's.
    NotFound = 3,
    /// The agent does not answer.
    Unreachable = 4,
    /// `--timeout` passed.
    Timeout = 124,
}

/// One line: what happened, to what, what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{line}")]
pub struct Failure {
    /// For scripts.
    pub exit: Exit,
    /// For people.
    pub line: String,
}

impl Failure {
    /// A verb that ends with `exit` and says `line`.
    pub fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self {
            exit,
            line: line.into(),
        }
    }

    /// [`Exit::Failed`].
    pub fn failed(line: impl Into<String>) -> Self {
        Self::new(Exit::Failed, line)
    }

    /// [`Exit::Usage`].
    pub fn usage(line: impl Into<String>) -> Self {
        Self::new(Exit::Usage, line)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}
