//! The engine's process: started in a session of its own, watched, ended.

mod environment;
mod spawn;
mod watch;

use std::collections::BTreeMap;
use std::io::PipeReader;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

pub use environment::{Sources, environment};
pub use watch::Watch;

use super::processes;

/// A started engine. The first process is its API server, whose id is also that of the session.
pub struct Engine {
    child: tokio::process::Child,
    pid: i32,
    ended: Option<ExitStatus>,
}

impl Engine {
    /// Starts `argv` in `folder` with exactly this environment. What it prints comes out of the pipe.
    pub fn start(
        argv: &[String],
        environment: &BTreeMap<String, String>,
        folder: &Path,
    ) -> std::io::Result<(Self, PipeReader)> {
        let (child, output) = spawn::spawn(argv, environment, folder)?;
        let pid = child.id().ok_or_else(|| std::io::Error::other("it has no id"))?;
        let pid = i32::try_from(pid).map_err(std::io::Error::other)?;
        let ended = None;
        Ok((Self { child, pid, ended }, output))
    }

    /// Of the first process, and of the session.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the first process to end. May be dropped and called again.
    pub async fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        // Waiting for a child of ours fails only if something else reaped it: how it ended is unknown then.
        let status = self
            .child
            .wait()
            .await
            .unwrap_or_else(|_| ExitStatus::from_raw(-1));
        self.ended = Some(status);
        status
    }

    /// SIGTERM to the first process alone (a signal to all of them breaks vLLM's drain), then a bounded wait for its end.
    pub async fn terminate(&mut self, within: Duration) {
        if self.ended.is_none() {
            processes::signal(self.pid, Signal::SIGTERM);
            let _ = tokio::time::timeout(within, self.wait()).await;
        }
    }

    /// Kills all that is left of it; returns who would not go within the time.
    pub async fn kill(&mut self, within: Duration) -> Vec<i32> {
        let pid = self.pid;
        // The first process is a zombie until it is waited for; `kill_family` leaves it alone.
        let (left, _) = tokio::join!(
            processes::kill_family(pid, within),
            tokio::time::timeout(within, self.wait())
        );
        left
    }
}
