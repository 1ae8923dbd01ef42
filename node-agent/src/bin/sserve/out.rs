//! What a verb prints: results to stdout, everything else to stderr, all of it plain text.

use std::io::Write as _;

use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::text::plain;

/// Prints lines of a result.
pub fn lines<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for line in lines {
        written(writeln!(out, "{}", plain(line.as_ref())))?;
    }
    written(out.flush())
}

/// Prints one line of a result.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    lines([text])
}

/// Prints a result as JSON, one line (JSON escapes control characters by itself).
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string(value).map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))?;
    let mut out = std::io::stdout().lock();
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Says something that is not the result.
pub fn note(text: impl AsRef<str>) {
    // Nobody listening on stderr is no reason to stop.
    let _ = writeln!(std::io::stderr().lock(), "sserve: {}", plain(text.as_ref()));
}

fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::ReaderLeft, ""))
        }
        Err(error) => Err(Failure::failed(format!("cannot write to stdout: {error}"))),
    }
}
