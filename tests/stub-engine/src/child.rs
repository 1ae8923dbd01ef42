//! The engine process (`STUB_CHILD=1`): same session and process group, own lifetime.
//!
//! Like vLLM's it inherits stdout and stderr, dies of a SIGTERM of its own, and stays when the API server is killed.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// First argument of the stub that runs as an engine process.
pub const VERB: &str = "__engine-core";

/// An orphan goes by itself after this long. vLLM's was still there after 17 minutes when measured.
const ORPHAN_LIFE: Duration = Duration::from_secs(20 * 60);

/// Starts it; it maps `segments` as vLLM's does.
pub fn start(segments: &[&Path]) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("VLLM::EngineCore")
        .arg(VERB)
        .args(segments)
        .stdin(Stdio::null())
        .kill_on_drop(false)
        .spawn()
}

/// The process's own main.
pub fn run(segments: impl Iterator<Item = String>) -> io::Result<()> {
    std::fs::write("/proc/self/comm", "VLLM::EngineCore")?;
    for path in segments {
        crate::shm::attach(Path::new(&path))?;
    }
    std::thread::sleep(ORPHAN_LIFE);
    Ok(())
}
