//! What is true about the engine right now: the phase, the changeable script, who runs and who waits.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::args::Options;
use crate::metrics::Counters;
use crate::requests::Requests;
use crate::script::{Ending, Hang, Live, Script};

/// How long one piece of a prefill takes.
const CHUNK: Duration = Duration::from_millis(50);

/// Where the server stands.
///
/// ```text
/// Serving ─TERM, timeout N─▶ Draining ─N s─▶ Aborting ─▶ exit 0
///    ├─────TERM, timeout 0──────────────────────┘
///    └─────engine process gone─▶ Dead ─STUB_ENGINE_DEATH_MS─▶ exit 0   (from Draining too)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requests are answered.
    Serving,
    /// What runs is finished; a new request is answered, at once and without a token, as aborted.
    Draining,
    /// What runs ends with `abort`, as do new requests.
    Aborting,
    /// The engine process is gone: what runs ends with an error, `/health` is 503.
    Dead,
}

/// What comes next in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A token.
    Token,
    /// The end, with finish reason `abort`.
    Abort,
    /// The end, with an error.
    Dead,
}

/// Shared by every connection.
pub struct Engine {
    /// The command line.
    pub options: Options,
    /// The script of this life.
    pub script: Script,
    /// The changeable part of the script.
    pub live: watch::Sender<Live>,
    /// Where the server stands.
    pub phase: watch::Sender<Phase>,
    /// For `/metrics`.
    pub counters: Counters,
    /// What was asked lately, for `/_stub/requests`.
    pub requests: Requests,
    /// Seconds since the epoch at the start.
    pub created: u64,
    inside: watch::Sender<u64>,
    endings: mpsc::UnboundedSender<Ending>,
    slots: Arc<Semaphore>,
}

impl Engine {
    /// A ready engine. Endings that tests order come out of the receiver.
    pub fn new(options: Options, script: Script) -> (Arc<Self>, mpsc::UnboundedReceiver<Ending>) {
        let (endings, ordered) = mpsc::unbounded_channel();
        let engine = Self {
            live: watch::Sender::new(script.live.clone()),
            phase: watch::Sender::new(Phase::Serving),
            counters: Counters::default(),
            requests: Requests::default(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            slots: Arc::new(Semaphore::new(options.max_num_seqs.min(Semaphore::MAX_PERMITS))),
            inside: watch::Sender::new(0),
            endings,
            options,
            script,
        };
        (Arc::new(engine), ordered)
    }

    /// The ids in `/v1/models`.
    pub fn ids(&self) -> Vec<String> {
        self.live
            .borrow()
            .model_id
            .clone()
            .map_or_else(|| self.options.served.clone(), |id| vec![id])
    }

    /// The phase now.
    pub fn now(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Orders the process to end after `delay`.
    pub fn end_after(&self, delay: Duration, ending: Ending) {
        let endings = self.endings.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            // The receiver goes only when the process is ending already.
            let _ = endings.send(ending);
        });
    }

    /// Waits until no request runs or waits.
    pub async fn idle(&self) {
        // The sender lives in `self`, so the channel can't be closed here.
        let _ = self.inside.subscribe().wait_for(|n| *n == 0).await;
    }

    /// Waits while everything hangs.
    pub async fn http_gate(&self) {
        self.wait_live(|live| live.hang != Hang::All).await;
    }

    /// Waits while bodies are held.
    pub async fn body_gate(&self) {
        self.wait_live(|live| !live.hold_body).await;
    }

    /// Waits `delay` for the next token, longer while the engine hangs.
    pub async fn step(&self, delay: Duration) -> Step {
        let mut phase = self.phase.subscribe();
        let ended = async {
            match phase
                .wait_for(|p| matches!(p, Phase::Aborting | Phase::Dead))
                .await
                .map(|p| *p)
            {
                Ok(Phase::Dead) => Step::Dead,
                _ => Step::Abort,
            }
        };
        let token = async {
            if delay.is_zero() {
                tokio::task::yield_now().await;
            } else {
                self.work(delay).await;
            }
            self.wait_live(|live| live.hang == Hang::None).await;
            Step::Token
        };
        tokio::select! { biased; step = ended => step, step = token => step }
    }

    /// Works for that long, filling the cache bit by bit unless it hangs: what a long prefill shows while no token comes.
    async fn work(&self, delay: Duration) {
        let end = Instant::now() + delay;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(CHUNK)).await;
            if self.live.borrow().hang == Hang::None {
                self.counters.chunks.add(1);
            }
        }
    }

    async fn wait_live(&self, allows: impl FnMut(&Live) -> bool) {
        // The sender lives in `self`, so the channel can't be closed here.
        let _ = self.live.subscribe().wait_for(allows).await;
    }
}

/// One request inside the engine: counted as waiting, then as running, until it is dropped. A client that goes away
/// drops it through hyper, so `vllm:num_requests_running` is the truth.
pub struct InEngine {
    engine: Arc<Engine>,
    prompt_tokens: u64,
    slot: Option<OwnedSemaphorePermit>,
    refused: bool,
    finished: Option<&'static str>,
    since: Instant,
}

impl InEngine {
    /// Queues; an engine that is ending refuses, and [`InEngine::admit`] says so.
    pub fn queue(engine: Arc<Engine>, prompt_tokens: u64) -> Self {
        let refused = matches!(engine.now(), Phase::Draining | Phase::Aborting);
        if !refused {
            engine.inside.send_modify(|n| *n += 1);
            engine.counters.waiting.add(1);
        }
        Self {
            engine,
            prompt_tokens,
            slot: None,
            refused,
            finished: None,
            since: Instant::now(),
        }
    }

    /// Waits for one of the `--max-num-seqs` places, then for the first token.
    pub async fn admit(&mut self) -> Step {
        if self.refused {
            return Step::Abort;
        }
        if self.slot.is_none() {
            let slots = Arc::clone(&self.engine.slots);
            // The semaphore is never closed.
            self.slot = slots.acquire_owned().await.ok();
            self.engine.counters.waiting.sub(1);
            self.engine.counters.running.add(1);
        }
        let ttft = Duration::from_millis(self.engine.live.borrow().ttft_ms);
        let step = self.engine.step(ttft).await;
        self.engine.counters.prompt_tokens.add(self.prompt_tokens);
        self.engine.counters.first_token.observe(self.since.elapsed());
        step
    }

    /// Waits for a later token.
    pub async fn next(&self) -> Step {
        let delay = Duration::from_millis(self.engine.live.borrow().token_ms);
        self.engine.step(delay).await
    }

    /// One token was made.
    pub fn made_token(&self) {
        self.engine.counters.generation_tokens.add(1);
    }

    /// The answer is complete, for this reason.
    pub fn finish(&mut self, reason: &'static str) {
        self.finished = Some(reason);
    }
}

impl Drop for InEngine {
    fn drop(&mut self) {
        if self.refused {
            return;
        }
        self.engine.inside.send_modify(|n| *n -= 1);
        let counters = &self.engine.counters;
        if self.slot.is_some() {
            &counters.running
        } else {
            &counters.waiting
        }
        .sub(1);
        counters.finished(self.finished.unwrap_or("abort"));
        counters.whole_request.observe(self.since.elapsed());
    }
}
