//! The runner: one task that owns engine, guard and folder, from the launch order to the last word to the agent.
//!
//! ```text
//!            order          port, engine started      unit of work done
//! (attach) ────────> STARTING ─────────────> LOADING ─────────────────> READY
//!                       │ cannot                │ fails, died, asked       │ died, asked
//!                       │                       │                          v
//!                       │                       │                       LEAVING   served on until Released
//!                       v                       v                          v
//!                    DRAINING <─────────────────┴──────────────────────────┘   in flight finished, engine ended, left-overs gone
//!                       v
//!                     DONE     exit 0 if somebody asked, 1 if not
//! ```
//!
//! LEAVING is told in every case, with the reason; only a model that was READY waits there.
//!
//! An engine that is lost after any attempt of this launch was ready is started again, as often and at such distances as the recipe says, behind
//! the same port and key (see `again`):
//!
//! ```text
//!      lost                     pause over
//! READY ────> RESTARTING ─────────────────────> LOADING ──> …
//!                 │ ^                              │
//!                 │ └──────────────────────────────┘ fails, attempts left
//!                 └ asked ──> LEAVING
//! ```

mod again;
mod ears;
mod end;

use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use slurm_serve_proto::v1::{Cause, RunnerPhase};
use slurm_serve_recipe::{CauseKind, explain};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::announcement::Announcement;
use super::awake::awake;
use super::engine::Watch;
use super::guard::Door;
use super::launch::{Ground, Made};
use super::link::{Link, Order};
use super::liveness::Liveness;
use super::outcome::{Failure, Outcome};
use super::{log, processes};
use crate::generation::of_attempt;
use ears::Ears;

/// A SIGTERM of Slurm's may reach the engine a moment before it reaches us (proctrack/linuxproc signals the whole tree).
const SAME_SIGNAL: Duration = Duration::from_millis(100);
/// For the rest of a dead engine's output.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
/// How often the engine's hold on shared memory is looked at, while it loads and once it has loaded.
const SAMPLE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Runs the step.
pub async fn run(announcement: Announcement) -> ExitCode {
    let (to_agent, for_agent) = log::queue();
    let dropped = for_agent.dropped.clone();
    let (term, int) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(term), Ok(int)) => (term, int),
        (Err(e), _) | (_, Err(e)) => return complain(&format!("cannot listen for signals: {e}")),
    };
    let generation = announcement.generation.clone();
    let mut link = Link::open(announcement, for_agent);
    let (_, no_events) = mpsc::channel(1);
    let mut ears = Ears {
        term,
        int,
        events: std::mem::replace(&mut link.events, no_events),
        signalled: false,
    };
    let order = match ears.first_order().await {
        Ok(order) => order,
        Err(code) => return code,
    };
    let attempt = order.launch.attempt.max(1);
    link.facts.send_modify(|facts| facts.attempt = attempt);
    let runner = Runner {
        generation: of_attempt(&generation, attempt),
        attempt,
        // There is a second attempt only at what was ready in the one before.
        ever_ready: attempt > 1,
        link,
        to_agent,
        dropped,
        made: Made::default(),
        was_ready: false,
    };
    runner.live(order, &mut ears).await
}

fn complain(line: &str) -> ExitCode {
    eprintln!("slurm-serve step: {line}");
    ExitCode::FAILURE
}

struct Runner {
    /// Of the present attempt.
    generation: String,
    attempt: u32,
    /// Was this attempt or one before it ready?
    ever_ready: bool,
    link: Link,
    to_agent: mpsc::Sender<String>,
    dropped: Arc<AtomicU64>,
    made: Made,
    /// Was this attempt ready?
    was_ready: bool,
}

impl Runner {
    async fn live(mut self, order: Order, ears: &mut Ears) -> ExitCode {
        self.phase(RunnerPhase::Starting);
        let mut outcome = self.serve(order, ears).await;
        while self.may_try_again(&outcome) {
            outcome = self.again(outcome, ears).await;
        }
        self.end(outcome, ears).await
    }

    fn phase(&self, phase: RunnerPhase) {
        self.link.facts.send_modify(|facts| facts.phase = phase as i32);
    }

    /// Up to the moment when it must end.
    async fn serve(&mut self, order: Order, ears: &mut Ears) -> Outcome {
        let ground = Ground {
            generation: &self.generation,
            facts: &self.link.facts,
            to_agent: self.to_agent.clone(),
            dropped: self.dropped.clone(),
        };
        if let Err(failure) = self.made.launch(&order.launch, order.listener, &ground).await {
            return failure.into();
        }
        if let Some(guard) = &self.made.guard {
            self.link.counts.send_replace(Some(guard.counts()));
        }
        self.use_engine(ears).await
    }

    /// From an engine that was just started to the moment when it must end.
    async fn use_engine(&mut self, ears: &mut Ears) -> Outcome {
        let sampling = self.sample();
        let outcome = match self.load(ears).await {
            Err(outcome) => outcome,
            Ok(version) => {
                self.open(version);
                self.stay(ears).await
            }
        };
        sampling.abort();
        match outcome {
            // What ended a moment after a signal that Slurm sent to all ended because of it.
            Outcome::Failed(failure, status) if status.is_some() => {
                match timeout(SAME_SIGNAL, ears.asked()).await {
                    Ok(asked) if ears.signalled => asked,
                    _ => Outcome::Failed(failure, status),
                }
            }
            outcome => outcome,
        }
    }

    /// Waits for the engine to be ready; gives its version.
    async fn load(&mut self, ears: &mut Ears) -> Result<String, Outcome> {
        let (Some(engine), Some(probe), Some(recipe)) =
            (&mut self.made.engine, &self.made.probe, &self.made.recipe)
        else {
            return Err(Failure::internal("nothing was launched").into());
        };
        let deadline = recipe.ready_timeout;
        let ended = tokio::select! {
            biased;
            outcome = ears.asked() => return Err(outcome),
            status = engine.wait() => status,
            ready = probe.ready() => return ready.map_err(Outcome::from),
            () = awake(deadline) => {
                let text = format!("{} was not ready within {}", self.made.model, humantime::format_duration(deadline));
                let hint = "its log says what it was doing; raise ready_timeout in the recipe if it only needs longer";
                return Err(Failure::new(Cause::ReadyDeadline, text, hint).into());
            }
        };
        Err(self.died(Some(ended)).await)
    }

    fn open(&mut self, version: String) {
        (self.was_ready, self.ever_ready) = (true, true);
        if let Some(guard) = &self.made.guard {
            guard.set(Door::Open);
        }
        if let Some(log) = &self.made.log {
            log.mark();
        }
        self.link.facts.send_modify(|facts| {
            facts.phase = RunnerPhase::Ready as i32;
            facts.engine_version = version;
            facts.progress = String::new();
        });
    }

    /// Serves, until somebody asks for the end or the engine is no more.
    async fn stay(&mut self, ears: &mut Ears) -> Outcome {
        let (Some(engine), Some(probe), Some(guard), Some(recipe)) = (
            &mut self.made.engine,
            &self.made.probe,
            &self.made.guard,
            &self.made.recipe,
        ) else {
            return Failure::internal("nothing was launched").into();
        };
        let mut watch = Watch::over(engine.pid());
        let mut liveness = Liveness::watch(probe.clone(), guard.counts(), recipe.unresponsive_after);
        let status = loop {
            tokio::select! {
                biased;
                outcome = ears.asked() => return outcome,
                status = engine.wait() => break Some(status),
                since = liveness.changed() => {
                    guard.set(if since == 0 { Door::Open } else { Door::Unresponsive });
                    self.link.facts.send_modify(|facts| facts.silent_since_ms = since);
                    let what = if since == 0 { "answers again" } else { "is alive and does not answer" };
                    if let Some(log) = &self.made.log {
                        log.say(&format!("{} {what}", self.made.model)).await;
                    }
                }
                pid = watch.next_end() => {
                    processes::reap_orphans(engine.pid());
                    if !probe.alive().await {
                        tracing::info!(pid, "a process of the engine ended, and the engine with it");
                        // Should all of it be ending, its status is worth a moment.
                        let status = timeout(SAME_SIGNAL, engine.wait()).await;
                        break status.ok();
                    }
                }
            }
        };
        self.died(status).await
    }

    /// Nobody asked for it: why, as far as kernel and log can tell.
    async fn died(&mut self, status: Option<std::process::ExitStatus>) -> Outcome {
        use std::os::unix::process::ExitStatusExt;

        let raw = status.map(ExitStatusExt::into_raw);
        // Told at once, whatever is found out below.
        if let Some(guard) = &self.made.guard {
            guard.ended("its engine died");
        }
        if let Some(end) = &self.made.log_end {
            let _ = timeout(LAST_OUTPUT, end.cancelled()).await;
        }
        let (Some(recipe), Some(log)) = (&self.made.recipe, &self.made.log) else {
            return Outcome::Failed(Failure::internal("the engine ended"), raw);
        };
        if self.made.oom.as_ref().is_some_and(super::oom::OomKills::happened) {
            let text = format!(
                "the kernel killed a process of {} at the job's memory limit",
                self.made.model
            );
            let hint = "submit with more memory (--mem), or lower what the recipe's arguments make it use";
            return Outcome::Failed(Failure::new(Cause::OutOfMemory, text, hint), raw);
        }
        let killed = raw.is_some_and(|raw| raw & 0x7f == Signal::SIGKILL as i32);
        if killed
            && self
                .made
                .oom
                .as_ref()
                .is_some_and(super::oom::OomKills::ruled_out)
        {
            let text = format!(
                "{} was killed (SIGKILL), and not by the job's memory limit",
                self.made.model
            );
            let hint = "somebody killed it, or the kernel did because the whole node was out of memory: see the kernel's log";
            return Outcome::Failed(Failure::new(Cause::EngineDied, text, hint), raw);
        }
        let explained = explain(&log.since_mark(), raw, recipe);
        let failure = Failure::new(
            cause(explained.cause),
            log.scrubbed(&explained.text),
            &explained.hint,
        );
        Outcome::Failed(failure, raw)
    }

    /// Looks every now and then at what the engine holds of shared memory, and reaps what it orphans.
    fn sample(&self) -> tokio::task::JoinHandle<()> {
        let leftovers = self.made.leftovers.clone();
        let engine = self.made.engine.as_ref().map(super::engine::Engine::pid);
        let facts = self.link.facts.subscribe();
        tokio::spawn(async move {
            let (Some(leftovers), Some(engine)) = (leftovers, engine) else {
                return;
            };
            for round in 0u64.. {
                let loaded = facts.borrow().phase == RunnerPhase::Ready as i32;
                sleep(if loaded { SAMPLE.1 } else { SAMPLE.0 }).await;
                let leftovers = leftovers.clone();
                let look = move || {
                    let thorough = round % 20 == 0;
                    let mut leftovers = leftovers.lock().unwrap_or_else(PoisonError::into_inner);
                    leftovers.sample(engine, thorough);
                    if thorough {
                        processes::reap_orphans(engine);
                    }
                };
                if tokio::task::spawn_blocking(look).await.is_err() {
                    return;
                }
            }
        })
    }
}

/// The contract's word for what a log showed.
fn cause(kind: CauseKind) -> Cause {
    match kind {
        CauseKind::GpuMemory => Cause::GpuMemory,
        CauseKind::TooFewGpus => Cause::TooFewGpus,
        CauseKind::WeightsMissing => Cause::WeightsMissing,
        CauseKind::HubUnreachable => Cause::HubUnreachable,
        CauseKind::TokenizerMissing => Cause::TokenizerMissing,
        CauseKind::UnknownArgument => Cause::UnknownArgument,
        CauseKind::EngineNotFound => Cause::EngineNotFound,
        CauseKind::EngineTooOld => Cause::EngineTooOld,
        CauseKind::EngineDied => Cause::EngineDied,
        CauseKind::OutOfMemory => Cause::OutOfMemory,
    }
}
