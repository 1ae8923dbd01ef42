//! How soon a cancelled job's model is gone from the gateway, and what that costs those who are using it.
//!
//! Some clients stream and some ask small things, all the time and through the gateway. In the middle of it the job's owner calls scancel;
//! the clock runs from the start of that command to the first list of models without ours. A request that was begun before scancel must be
//! answered in full. One that comes later may be refused, but not break.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serve_e2e::Site;
use serve_lab::wait_for;

use crate::bed::{self, Effort, WITH, wait_idle};
use crate::http::{Connection, chat};
use crate::report::{Goal, Row};
use crate::stats::{Estimate, Samples};

/// From scancel to gone, in ms.
const GOAL: f64 = 150.0;

const MODEL: &str = "bench-busy";

/// Clients that stream 20 tokens, 200 ms; as many ask for one token.
const CLIENTS: usize = 3;

/// The clients have been at it for so long when scancel comes.
const BEFORE: Duration = Duration::from_millis(400);

/// Whatever is in flight has its answer by then.
const AFTER: Duration = Duration::from_millis(500);

/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(3);

/// No round takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Answered in full.
    Answered,
    /// An answer that says no.
    Refused(u16),
    /// No answer, or half of one.
    Broken,
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
struct Asked {
    begun: Instant,
    outcome: Outcome,
}

/// What one round showed.
struct Round {
    cancelled: Instant,
    gone: Instant,
    asked: Vec<Asked>,
}

/// Runs it.
pub fn measure(site: &Site, effort: Effort) -> Result<Vec<Row>> {
    let mut took = Samples::default();
    let (mut before, mut failed, mut meanwhile, mut broken) = (0, 0, 0, 0);
    for _ in 0..effort.rounds(16, 3) {
        let round = round(site)?;
        let milliseconds = (round.gone - round.cancelled).as_secs_f64() * 1000.0;
        took.push(vec![milliseconds]);
        for asked in &round.asked {
            if asked.begun < round.cancelled {
                before += 1;
                failed += usize::from(asked.outcome != Outcome::Answered);
            } else if asked.begun < round.gone {
                meanwhile += 1;
                broken += usize::from(!clean(asked.outcome));
            }
        }
    }
    Ok(vec![
        Row::new(
            "scancel → gone from the gateway, in use",
            took.quantile(0.5),
            "ms",
            Goal::AtMost(GOAL),
        ),
        Row::new(
            "scancel → gone from the gateway, p90",
            took.quantile(0.9),
            "ms",
            Goal::None,
        ),
        Row::read(
            "requests begun before scancel: failed",
            failed as f64,
            "requests",
            Goal::AtMost(0.0),
        )
        .beside("all of them", counted(before)),
        Row::read(
            "requests begun until it was gone: broken",
            broken as f64,
            "requests",
            Goal::AtMost(0.0),
        )
        .beside("all of them", counted(meanwhile)),
    ])
}

fn counted(number: usize) -> Estimate {
    Estimate {
        value: number as f64,
        interval: None,
    }
}

/// A request that comes while a model goes may be told so: there is none, or it is ending.
fn clean(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Answered | Outcome::Refused(404 | 503))
}

fn round(site: &Site) -> Result<Round> {
    let node = site.node(WITH);
    let model = format!("--serve-model={MODEL}");
    let job = site.sbatch("alice", &[&model, "-w", node.name()], "sserve hold")?;
    let mut gateway = bed::gateway(site)?;
    wait_for(LIMIT, "the model to be listed", || {
        Ok(bed::listed(&mut gateway, MODEL)?.then_some(()))
    })
    .with_context(|| job.explain())?;

    let stop = AtomicBool::new(false);
    let round = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2 * CLIENTS)
            .map(|number| number < CLIENTS)
            .map(|streams| {
                scope.spawn({
                    let stop = &stop;
                    move || client(site, streams, stop)
                })
            })
            .collect();
        std::thread::sleep(BEFORE);
        let cancelled = Instant::now();
        let scancel = scope.spawn(|| job.cancel());
        let gone = gone(&mut gateway, cancelled);
        std::thread::sleep(AFTER);
        stop.store(true, Ordering::Relaxed);
        let mut asked = Vec::new();
        for client in clients {
            asked.extend(joined(client)?);
        }
        joined(scancel)?;
        Ok::<_, anyhow::Error>(Round {
            cancelled,
            gone: gone?,
            asked,
        })
    });
    wait_idle(node)?;
    round
}

/// When the gateway first gave a list without the model.
fn gone(gateway: &mut Connection, since: Instant) -> Result<Instant> {
    while bed::listed(gateway, MODEL)? {
        ensure!(
            since.elapsed() < LIMIT,
            "{MODEL} is still listed {} s after scancel",
            LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Instant::now())
}

/// Asks until told to stop.
fn client(site: &Site, streams: bool, stop: &AtomicBool) -> Result<Vec<Asked>> {
    let more = match streams {
        true => r#","max_tokens":20,"stream":true"#,
        false => r#","max_tokens":1"#,
    };
    let request = chat(MODEL, None, more);
    let mut connection = None;
    let mut asked = Vec::new();
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if start.elapsed() > LIMIT {
            bail!("nobody told the clients to stop");
        }
        let mut open = match connection.take() {
            Some(open) => open,
            None => bed::gateway(site)?,
        };
        let begun = Instant::now();
        let mut end = Vec::new();
        let answer = open.exchange(&request, |piece| end.extend_from_slice(piece));
        let outcome = match answer {
            Ok(200) if !streams || whole(&end) => Outcome::Answered,
            Ok(200) | Err(_) => Outcome::Broken,
            Ok(status) => Outcome::Refused(status),
        };
        asked.push(Asked { begun, outcome });
        // A refusal may close the connection.
        if outcome == Outcome::Answered {
            connection = Some(open);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(asked)
}

/// A stream that came to its own end, not to that of its engine.
fn whole(stream: &[u8]) -> bool {
    let text = String::from_utf8_lossy(stream);
    text.trim_end().ends_with("data: [DONE]") && !text.contains("\"error\"") && !text.contains("\"abort\"")
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_was_cut_is_not_whole() {
        assert!(whole(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n"));
        assert!(!whole(b"data: {\"choices\":[]}\n\n"));
        assert!(!whole(b"data: {\"finish_reason\":\"abort\"}\n\ndata: [DONE]\n\n"));
        assert!(!whole(b"data: {\"error\":{}}\n\ndata: [DONE]\n\n"));
    }

    #[test]
    fn a_late_request_may_be_refused_and_not_fail() {
        assert!(clean(Outcome::Refused(404)) && clean(Outcome::Answered));
        assert!(!clean(Outcome::Refused(502)) && !clean(Outcome::Broken));
    }
}
