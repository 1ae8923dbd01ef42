//! What the engine prints: into a file beside the job's output, to the agent, and a tail of it to explain a failure with.
//!
//! A thread of its own reads the engine's pipe, so that a file system that hangs stops nothing but the engine's printing.

mod file;
mod lines;
mod scrub;

use std::collections::VecDeque;
use std::io::{PipeReader, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slurm_serve_proto::v1::RunnerFacts;
use slurm_serve_recipe::meaningful_line;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use file::LogFile;
pub use scrub::Scrub;

/// Before each line of our own.
const OURS: &str = "slurm-serve: ";

/// Lines kept to explain a failure with.
const KEPT: usize = 400;

/// The longest line told to anybody but the file, in bytes.
const TOLD: usize = 2048;

/// Lines on their way to the agent; more than fit are counted as dropped.
const QUEUE: usize = 2000;

/// Lines for the agent, as the link takes them.
pub struct ForAgent {
    /// Whole lines, without their ends.
    pub lines: mpsc::Receiver<String>,
    /// How many did not fit since this was last taken.
    pub dropped: Arc<AtomicU64>,
}

/// The log of one runner. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    file: Mutex<LogFile>,
    scrub: Scrub,
    tail: Mutex<Tail>,
    to_agent: mpsc::Sender<String>,
    dropped: Arc<AtomicU64>,
    facts: watch::Sender<RunnerFacts>,
    /// Progress is for those who wait.
    loaded: AtomicBool,
}

#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    /// How many of `lines`, from the end, came since the mark.
    since_mark: usize,
}

/// A way for lines to the agent, made before there is a log.
pub fn queue() -> (mpsc::Sender<String>, ForAgent) {
    let (sender, lines) = mpsc::channel(QUEUE);
    let dropped = Arc::default();
    (sender, ForAgent { lines, dropped })
}

impl Log {
    /// Writes to `file`; tells the agent through `to_agent` and shows progress in `facts`.
    pub fn new(
        file: LogFile,
        scrub: Scrub,
        to_agent: mpsc::Sender<String>,
        dropped: Arc<AtomicU64>,
        facts: watch::Sender<RunnerFacts>,
    ) -> Self {
        Self(Arc::new(Inner {
            file: Mutex::new(file),
            scrub,
            tail: Mutex::default(),
            to_agent,
            dropped,
            facts,
            loaded: AtomicBool::new(false),
        }))
    }

    /// Reads `pipe` to its end in a thread of its own; the token tells of the end.
    pub fn follow(&self, mut pipe: PipeReader) -> std::io::Result<CancellationToken> {
        let (ended, log) = (CancellationToken::new(), self.clone());
        let end = ended.clone();
        std::thread::Builder::new()
            .name("engine-log".into())
            .spawn(move || {
                let mut cut = lines::Lines::default();
                let mut buffer = vec![0; 16 * 1024];
                loop {
                    match pipe.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(read) => cut
                            .push(&buffer[..read])
                            .into_iter()
                            .for_each(|line| log.line(line)),
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
                cut.rest().into_iter().for_each(|line| log.line(line));
                ended.cancel();
            })?;
        Ok(end)
    }

    /// A line of our own in the same log. Waits for the file no longer than a moment.
    pub async fn say(&self, text: &str) {
        let log = self.clone();
        let line = format!("{OURS}{text}\n").into_bytes();
        let writing = tokio::task::spawn_blocking(move || log.line(line));
        let _ = tokio::time::timeout(Duration::from_millis(300), writing).await;
    }

    /// Another engine is started: it has its own failures and its own progress.
    pub fn again(&self) {
        self.0.loaded.store(false, Ordering::Relaxed);
        self.tail().since_mark = 0;
    }

    /// The engine is loaded: failures from now on are explained by lines from now on, and progress is of no interest.
    pub fn mark(&self) {
        self.0.loaded.store(true, Ordering::Relaxed);
        self.tail().since_mark = 0;
    }

    /// The lines since the mark, oldest first.
    pub fn since_mark(&self) -> Vec<String> {
        let tail = self.tail();
        let skip = tail.lines.len() - tail.since_mark;
        tail.lines.iter().skip(skip).cloned().collect()
    }

    /// The last lines: at most `count`, at most `bytes` altogether.
    pub fn last(&self, count: usize, bytes: usize) -> Vec<String> {
        let tail = self.tail();
        let mut left = bytes;
        let fitting = tail.lines.iter().rev().take(count).take_while(|line| {
            let fits = line.len() <= left;
            left = left.saturating_sub(line.len());
            fits
        });
        let mut last: Vec<String> = fitting.cloned().collect();
        last.reverse();
        last
    }

    /// `text` without secrets.
    pub fn scrubbed(&self, text: &str) -> String {
        self.0.scrub.text(text)
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one line with its end.
    fn line(&self, line: Vec<u8>) {
        let line = self.0.scrub.scrub(line);
        let written = {
            let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(&line)
        };
        if let Err(note) = written {
            self.0.facts.send_modify(|facts| facts.log_note = note);
        }
        let overwritten = line.last() == Some(&b'\r');
        let text = plain(&String::from_utf8_lossy(&line));
        // Our own lines tell nothing of how far the engine is.
        if !self.0.loaded.load(Ordering::Relaxed)
            && !text.starts_with(OURS)
            && let Some(progress) = meaningful_line(&text)
        {
            self.0.facts.send_if_modified(|facts| {
                let new = facts.progress != progress;
                facts.progress = progress;
                new
            });
        }
        // A progress bar's many states are for the file and the progress alone.
        if overwritten || text.is_empty() {
            return;
        }
        let mut tail = self.tail();
        if tail.lines.len() == KEPT {
            tail.lines.pop_front();
        }
        tail.lines.push_back(text.clone());
        tail.since_mark = (tail.since_mark + 1).min(tail.lines.len());
        drop(tail);
        if self.0.to_agent.try_send(text).is_err() {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// For somebody's terminal: no escape sequences, no control characters, not endless.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len().min(TOLD));
    let mut chars = line.trim_end().chars().peekable();
    while let Some(c) = chars.next() {
        if text.len() >= TOLD {
            text.push('…');
            break;
        }
        match c {
            '\x1b' => {
                if chars.next_if_eq(&'[').is_some() {
                    // Parameters, then one final letter.
                    while chars.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                    chars.next();
                }
            }
            '\t' => text.push(' '),
            c if c.is_control() => {}
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Log, ForAgent, watch::Receiver<RunnerFacts>) {
        let (to_agent, for_agent) = queue();
        let (facts, seen) = watch::channel(RunnerFacts::default());
        let log = Log::new(
            LogFile::none(),
            Scrub::new("sk-0123456789", []),
            to_agent,
            for_agent.dropped.clone(),
            facts,
        );
        (log, for_agent, seen)
    }

    #[test]
    fn lines_for_people_hold_no_escapes() {
        assert_eq!(plain("\x1b[1;32mINFO\x1b[0m a\tb\x07\r\n"), "INFO a b");
        assert_eq!(plain(&"é".repeat(5000)).chars().last(), Some('…'));
    }

    #[test]
    fn the_tail_is_bounded_and_knows_its_mark() {
        let (log, mut for_agent, _) = log();
        for n in 0..3000 {
            log.line(format!("line {n}\n").into_bytes());
        }
        assert_eq!(log.since_mark().len(), KEPT);
        assert_eq!(log.last(2, 4096), ["line 2998", "line 2999"]);
        assert_eq!(log.last(20, 12), ["line 2999"]);
        log.mark();
        log.line(b"key sk-0123456789\n".to_vec());
        assert_eq!(log.since_mark(), ["key [removed]"]);
        assert_eq!(for_agent.lines.blocking_recv().as_deref(), Some("line 0"));
        assert_eq!(for_agent.dropped.load(Ordering::Relaxed), 1001);
    }
}
