//! A wall clock of a process's own that can be stepped: Linux has one for the whole machine, which is not ours to change.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use serve_lab::Node;

use crate::compiled;

const LIBRARY: &str = "/usr/lib/stepped-clock.so";
const OFFSET: &str = "/run/clock-offset";

/// What makes a command on `node` see the clock that [`step`] steps: a variable of its environment.
pub(crate) fn of(node: &Node) -> Result<(&'static str, &'static str)> {
    node.install_file(LIBRARY, compiled("src/clock.c", &[])?, 0o755)?;
    node.install_file(OFFSET, 0_i64.to_ne_bytes(), 0o644)?;
    Ok(("LD_PRELOAD", LIBRARY))
}

/// Steps it: from now on it is so many seconds ahead of the machine's, or behind.
pub(crate) fn step(node: &Node, seconds: i64) -> Result<()> {
    // In place, since it is mapped.
    let write = || {
        OpenOptions::new()
            .write(true)
            .open(OFFSET)?
            .write_all_at(&seconds.to_ne_bytes(), 0)
    };
    node.inside(write)?
        .with_context(|| format!("{OFFSET} on {}", node.name()))
}
