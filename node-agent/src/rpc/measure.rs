//! What a runner may say, and how often. It is the user's process: what it says goes on to every watcher and into lists, so that a text
//! without end would take all the models of this node out of the catalog, not its own alone.

use std::time::Duration;

use slurm_serve_proto::v1::{Ending, RunnerFacts};
use tokio::time::Instant;

/// One line for people, in bytes.
const LINE: usize = 1024;
/// A path (PATH_MAX).
const PATH: usize = 4096;
/// The tail of a log: lines, and bytes altogether.
const TAIL: (usize, usize) = (20, 4096);

/// Messages in a second. Ours sends some ten, and a few dozen at once when a long log meets a change of phase.
const PER_SECOND: u32 = 100;

/// The same facts, no longer than they need to be.
pub fn cut(mut facts: RunnerFacts) -> RunnerFacts {
    for text in [
        &mut facts.progress,
        &mut facts.engine_version,
        &mut facts.log_note,
    ] {
        shorten(text, LINE);
    }
    shorten(&mut facts.log_path, PATH);
    for ending in [&mut facts.ending, &mut facts.last_failure].into_iter().flatten() {
        cut_ending(ending);
    }
    facts
}

fn cut_ending(ending: &mut Ending) {
    shorten(&mut ending.text, LINE);
    shorten(&mut ending.hint, LINE);
    shorten(&mut ending.log_path, PATH);
    let (lines, mut left) = TAIL;
    ending.log_tail.truncate(lines);
    for line in &mut ending.log_tail {
        shorten(line, left);
        left -= line.len();
    }
}

/// Control characters are nobody's to send either: these lines are read on terminals and in logs.
fn shorten(text: &mut String, most: usize) {
    if text.contains(char::is_control) {
        *text = text.replace(char::is_control, " ");
    }
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
}

/// Slows down who says too much.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    heard: u32,
}

impl Pace {
    /// Nothing said yet.
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
            heard: 0,
        }
    }

    /// To be awaited after each message: returns at once unless this second has had its share.
    pub async fn heard(&mut self) {
        self.heard += 1;
        let second = self.since + Duration::from_secs(1);
        if self.heard >= PER_SECOND {
            tokio::time::sleep_until(second).await;
        }
        if Instant::now() >= second {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use prost::Message;

    #[test]
    fn however_much_a_runner_says_little_is_passed_on() {
        let long = || "é\u{1b}[31m\n".repeat(100_000);
        let ending = Ending {
            text: long(),
            hint: long(),
            log_path: long(),
            log_tail: vec![long(); 100],
            ..Ending::default()
        };
        let facts = RunnerFacts {
            progress: long(),
            engine_version: long(),
            log_path: long(),
            log_note: long(),
            port: 7,
            ending: Some(ending.clone()),
            last_failure: Some(ending),
            ..RunnerFacts::default()
        };
        let facts = cut(facts);
        // 64 models of these, the most a node has by default, stay below the 4 MiB that a gRPC client takes.
        assert!(facts.encoded_len() < 40 << 10, "{}", facts.encoded_len());
        let texts = [&facts.progress, &facts.ending.as_ref().unwrap().text];
        assert!(texts.iter().all(|text| !text.contains(char::is_control)));
        assert_eq!(facts.port, 7);
    }

    #[test]
    fn what_is_usual_stays_as_it_is() {
        let facts = RunnerFacts {
            progress: "Loading shards 50 %".into(),
            ending: Some(Ending {
                text: "weights missing: é".into(),
                log_tail: vec!["a".into(), String::new(), "b".into()],
                ..Ending::default()
            }),
            ..RunnerFacts::default()
        };
        assert_eq!(cut(facts.clone()), facts);
    }

    #[tokio::test]
    async fn a_flood_is_slowed_down_and_a_burst_is_not() {
        // Its second lies far ahead: however slow the test runs, it is one second.
        let mut pace = Pace {
            since: Instant::now() + Duration::from_secs(3600),
            heard: 0,
        };
        for _ in 0..PER_SECOND - 1 {
            assert!(pace.heard().now_or_never().is_some());
        }
        assert!(
            pace.heard().now_or_never().is_none(),
            "it waits for the next second"
        );
        let mut rested = Pace {
            since: Instant::now() - Duration::from_secs(2),
            heard: PER_SECOND,
        };
        rested.heard().await;
        assert_eq!(rested.heard, 0);
    }
}
