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

use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slurm_serve_proto::v1::{Cause, LaunchOrder, RunnerPhase};
use slurm_serve_recipe::{CauseKind, explain};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::announcement::Announcement;
use super::ending::Parts;
use super::engine::Watch;
use super::guard::Door;
use super::launch::{Ground, Made};
use super::leftovers::Leftovers;
use super::link::{Event, Link};
use super::outcome::{Failure, Outcome};
use super::{log, processes};

/// An agent that has been away for so long is not waited for when leaving.
const AGENT_AWAY: Duration = Duration::from_millis(500);
/// A SIGTERM of Slurm's may reach the engine a moment before it reaches us (proctrack/linuxproc signals the whole tree).
const SAME_SIGNAL: Duration = Duration::from_millis(100);
/// For the rest of a dead engine's output.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
/// An engine that is not ready has nothing to drain.
const LOADING_TERM: Duration = Duration::from_millis(1500);
/// How often the engine's hold on shared memory is looked at, while it loads and once it has loaded.
const SAMPLE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Of the log, told with a failure.
const TOLD_LINES: usize = 20;
const TOLD_BYTES: usize = 4096;

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
    let runner = Runner {
        generation,
        link,
        to_agent,
        dropped,
        made: Made::default(),
        was_ready: false,
    };
    runner.live(&order, &mut ears).await
}

fn complain(line: &str) -> ExitCode {
    eprintln!("slurm-serve step: {line}");
    ExitCode::FAILURE
}

/// Whoever may ask for the end: Slurm by signal, the agent by word.
struct Ears {
    term: Signal,
    int: Signal,
    events: mpsc::Receiver<Event>,
    signalled: bool,
}

impl Ears {
    async fn first_order(&mut self) -> Result<LaunchOrder, ExitCode> {
        loop {
            tokio::select! {
                () = signalled(&mut self.term, &mut self.int) => return Err(ExitCode::SUCCESS),
                event = self.events.recv() => match event {
                    Some(Event::Order(order)) => return Ok(*order),
                    Some(Event::Stop(_)) => return Err(ExitCode::SUCCESS),
                    Some(Event::Over(why)) => return Err(complain(&why)),
                    Some(Event::Released) => {}
                    None => return Err(complain("the line to the agent ended")),
                },
            }
        }
    }

    /// Returns when somebody asks for the end. May be dropped and called again.
    async fn asked(&mut self) -> Outcome {
        loop {
            tokio::select! {
                biased;
                () = signalled(&mut self.term, &mut self.int) => {
                    self.signalled = true;
                    return Outcome::signalled();
                }
                event = self.events.recv() => match event {
                    Some(Event::Stop(stop)) => return Outcome::ordered(stop.cause()),
                    Some(Event::Over(why)) => return Outcome::Asked(Cause::JobEnded, why),
                    // Of an end that did not come to be, or said twice.
                    Some(Event::Released | Event::Order(_)) => {}
                    None => return Outcome::Asked(Cause::JobEnded, "the line to the agent ended".into()),
                },
            }
        }
    }

    async fn released(&mut self) {
        loop {
            match self.events.recv().await {
                Some(Event::Released | Event::Over(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

async fn signalled(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

struct Runner {
    generation: String,
    link: Link,
    to_agent: mpsc::Sender<String>,
    dropped: Arc<AtomicU64>,
    made: Made,
    was_ready: bool,
}

impl Runner {
    async fn live(mut self, order: &LaunchOrder, ears: &mut Ears) -> ExitCode {
        self.phase(RunnerPhase::Starting);
        let outcome = self.serve(order, ears).await;
        self.end(outcome, ears).await
    }

    fn phase(&self, phase: RunnerPhase) {
        self.link.facts.send_modify(|facts| facts.phase = phase as i32);
    }

    /// Up to the moment when it must end.
    async fn serve(&mut self, order: &LaunchOrder, ears: &mut Ears) -> Outcome {
        let ground = Ground {
            generation: &self.generation,
            facts: &self.link.facts,
            to_agent: self.to_agent.clone(),
            dropped: self.dropped.clone(),
        };
        if let Err(failure) = self.made.launch(order, &ground).await {
            return failure.into();
        }
        if let Some(guard) = &self.made.guard {
            self.link.counts.send_replace(Some(guard.counts()));
        }
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
            () = sleep(deadline) => {
                let text = format!("{} was not ready within {}", self.made.model, humantime::format_duration(deadline));
                let hint = "its log says what it was doing; raise ready_timeout in the recipe if it only needs longer";
                return Err(Failure::new(Cause::ReadyDeadline, text, hint).into());
            }
        };
        Err(self.died(Some(ended)).await)
    }

    fn open(&mut self, version: String) {
        self.was_ready = true;
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
        let (Some(engine), Some(probe)) = (&mut self.made.engine, &self.made.probe) else {
            return Failure::internal("nothing was launched").into();
        };
        let mut watch = Watch::over(engine.pid());
        let status = loop {
            tokio::select! {
                biased;
                outcome = ears.asked() => return outcome,
                status = engine.wait() => break Some(status),
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

    /// The whole end, each part bounded.
    async fn end(mut self, outcome: Outcome, ears: &mut Ears) -> ExitCode {
        let start = Instant::now();
        let failed = outcome.is_failure();
        let parts = self
            .made
            .parts
            .unwrap_or_else(|| Parts::fit(Duration::ZERO, Duration::ZERO));
        self.tell(&outcome);
        if failed {
            if let Some(guard) = &self.made.guard {
                guard.ended(outcome.text());
            }
            // Its memory, on the GPU above all, is free before anything else is waited for.
            self.kill(parts.kill).await;
        }
        if self.was_ready {
            self.leave(ears, start + parts.leaving).await;
        }
        self.phase(RunnerPhase::Draining);
        if !failed {
            self.drain(start + parts.leaving + parts.drain).await;
            self.terminate(if self.was_ready {
                parts.term
            } else {
                LOADING_TERM.min(parts.term)
            })
            .await;
            self.kill(parts.kill).await;
        }
        self.clean(&outcome).await;
        self.phase(RunnerPhase::Done);
        self.link.finish(parts.kill.min(Duration::from_secs(1))).await;
        match &outcome {
            Outcome::Failed(failure, _) => complain(&failure.text),
            Outcome::Asked(..) => ExitCode::SUCCESS,
        }
    }

    /// LEAVING, with the reason.
    fn tell(&self, outcome: &Outcome) {
        let tail = self.made.log.as_ref().map(|log| log.last(TOLD_LINES, TOLD_BYTES));
        let ending = outcome.ending(self.made.log_path.clone(), tail.unwrap_or_default());
        self.link.facts.send_modify(|facts| {
            facts.phase = RunnerPhase::Leaving as i32;
            facts.ending = Some(ending);
        });
    }

    /// Serves on until every catalog has let go, the time is up, or there is no agent to say so.
    async fn leave(&mut self, ears: &mut Ears, until: Instant) {
        let mut connected = self.link.connected.clone();
        let away = async {
            loop {
                if connected.wait_for(|connected| !connected).await.is_err() {
                    return;
                }
                let back = connected.wait_for(|connected| *connected);
                if timeout(AGENT_AWAY, back).await.is_err() {
                    return;
                }
            }
        };
        let released = async {
            tokio::select! {
                () = ears.released() => {}
                () = away => {}
            }
        };
        let _ = tokio::time::timeout_at(until, released).await;
    }

    /// Refuses what is new, finishes what is in flight.
    async fn drain(&mut self, until: Instant) {
        let Some(guard) = &self.made.guard else { return };
        guard.set(Door::Draining);
        let counts = guard.counts();
        let _ = tokio::time::timeout_at(until, counts.idle()).await;
    }

    async fn terminate(&mut self, within: Duration) {
        self.look_at_leftovers().await;
        if let Some(engine) = &mut self.made.engine {
            engine.terminate(within).await;
        }
        if let Some(guard) = &self.made.guard {
            guard.ended("its time was over");
        }
    }

    async fn kill(&mut self, within: Duration) {
        self.look_at_leftovers().await;
        let Some(engine) = &mut self.made.engine else {
            return;
        };
        let left = engine.kill(within).await;
        if !left.is_empty() {
            // In the kernel's hands (a hung file system or driver); Slurm's own kill and its UnkillableStepProgram come next.
            eprintln!("slurm-serve step: processes {left:?} of the engine do not die");
        }
    }

    async fn look_at_leftovers(&self) {
        let (Some(leftovers), Some(engine)) = (self.made.leftovers.clone(), &self.made.engine) else {
            return;
        };
        let pid = engine.pid();
        let look = move || {
            let mut leftovers: std::sync::MutexGuard<'_, Leftovers> =
                leftovers.lock().unwrap_or_else(PoisonError::into_inner);
            leftovers.sample(pid, true);
        };
        let _ = timeout(LAST_OUTPUT, tokio::task::spawn_blocking(look)).await;
    }

    /// Removes what is left, says the last line, frees the port.
    async fn clean(&mut self, outcome: &Outcome) {
        let mut failed = match &self.made.leftovers {
            Some(leftovers) => leftovers.lock().unwrap_or_else(PoisonError::into_inner).remove(),
            None => Vec::new(),
        };
        if let Some(end) = &self.made.log_end {
            let _ = timeout(LAST_OUTPUT, end.cancelled()).await;
        }
        if let Some(log) = &self.made.log {
            log.say(&format!("{} has ended: {}", self.made.model, outcome.text()))
                .await;
        }
        if let Some(private) = self.made.private.take()
            && let Err(e) = private.remove()
        {
            failed.push(format!("{}: {e}", private.path().display()));
        }
        for line in failed {
            eprintln!("slurm-serve step: left behind: {line}");
        }
        if let Some(guard) = self.made.guard.take() {
            guard.close(LAST_OUTPUT).await;
        }
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
