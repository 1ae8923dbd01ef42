//! The engine's log lines as somebody who waits wants to see them.

/// The part of a log line that tells a person how far the engine is; `None` for what tells nothing.
pub fn meaningful_line(line: &str) -> Option<String> {
    let line = line.trim();
    (!line.is_empty()).then(|| line.to_owned())
}
