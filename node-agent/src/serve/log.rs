//! The tail of a model's log, as the agent keeps it for `sserve logs`; the whole of it is a file of the user's.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// Lines kept.
const MAX_LINES: usize = 1000;
/// Bytes kept.
const MAX_BYTES: usize = 256 * 1024;
/// One line is cut after this many bytes.
const MAX_LINE: usize = 4096;

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    bytes: usize,
    /// The number of the first kept line.
    first: u64,
    dropped: u64,
    closed: bool,
}

/// The last lines of one model's log.
#[derive(Debug)]
pub struct LogTail {
    kept: Mutex<Kept>,
    changed: watch::Sender<u64>,
}

/// What a reader gets at once.
#[derive(Debug, PartialEq)]
pub struct Part {
    /// The lines.
    pub lines: Vec<String>,
    /// Lines that were lost before these.
    pub dropped: u64,
    /// Where to go on.
    pub next: u64,
    /// There will be no more.
    pub closed: bool,
}

impl Default for LogTail {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl LogTail {
    /// Adds lines; forgets the oldest beyond the bounds.
    pub fn push(&self, lines: Vec<String>, dropped: u64) {
        let mut kept = self.lock();
        // As the runner says, who may say anything.
        kept.dropped = kept.dropped.saturating_add(dropped);
        for mut line in lines {
            if line.len() > MAX_LINE {
                let cut = (0..=MAX_LINE)
                    .rev()
                    .find(|at| line.is_char_boundary(*at))
                    .unwrap_or(0);
                line.truncate(cut);
            }
            kept.bytes += line.len();
            kept.lines.push_back(line);
        }
        while kept.lines.len() > MAX_LINES || kept.bytes > MAX_BYTES {
            let Some(line) = kept.lines.pop_front() else { break };
            kept.bytes -= line.len();
            kept.first += 1;
        }
        drop(kept);
        self.changed.send_modify(|count| *count += 1);
    }

    /// There will be no more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.send_modify(|count| *count += 1);
    }

    /// The number of the line with which the last `count` begin.
    pub fn start_of_last(&self, count: usize) -> u64 {
        let kept = self.lock();
        let length = kept.lines.len();
        kept.first + (length - count.min(length)) as u64
    }

    /// What there is from line number `from` on.
    pub fn read(&self, from: u64) -> Part {
        let kept = self.lock();
        let skip = usize::try_from(from.saturating_sub(kept.first)).unwrap_or(usize::MAX);
        let lines: Vec<String> = kept.lines.iter().skip(skip).cloned().collect();
        let lost = kept.first.saturating_sub(from);
        let dropped = if from == 0 { kept.dropped } else { 0 };
        Part {
            lines,
            dropped: lost.saturating_add(dropped),
            next: kept.first + kept.lines.len() as u64,
            closed: kept.closed,
        }
    }

    /// Wakes with each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_and_a_late_reader_is_told() {
        let tail = LogTail::default();
        tail.push((0..1500).map(|n| format!("line {n}")).collect(), 0);
        let part = tail.read(0);
        assert_eq!(
            (part.lines.len(), part.dropped, part.next),
            (MAX_LINES, 500, 1500)
        );
        assert_eq!(part.lines[0], "line 500");
        tail.push(vec!["more".into()], 0);
        assert_eq!(tail.read(part.next).lines, ["more"]);
        assert_eq!(tail.read(tail.start_of_last(2)).lines, ["line 1499", "more"]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_at_a_character() {
        let tail = LogTail::default();
        tail.push(vec!["é".repeat(MAX_LINE)], 0);
        assert!(tail.read(0).lines[0].len() <= MAX_LINE);
    }
}
