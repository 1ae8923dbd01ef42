//! How soon a model that is ready is in the gateway's list, beside what people write by hand: a script that asks its server until it answers,
//! sleeps in between, and then posts to a registry.
//!
//! All of them look at the same start of the same engine. The engine's own log tells when it can answer, and when it has answered the first
//! unit of work; the gateway's list is asked every millisecond from then on. The scripts run in the job, ask the engine's own socket, and
//! begin at moments spread evenly over their interval, as engines take any time to load.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use serve_e2e::{Job, Site};
use serve_lab::wait_for;

use crate::bed::{self, Effort, WITH, wait_idle};
use crate::registry::Registry;
use crate::report::{Goal, Row};
use crate::stats::Samples;

/// From the answer to the first unit of work to the list, in ms.
const GOAL: f64 = 100.0;

/// Between two looks at the log and the list.
const LOOK: Duration = Duration::from_millis(1);

/// The stub is ready soon after this file is on its node. Nobody who waits for it may know the moment: an engine loads for any time.
const GO: &str = "/tmp/bench-go";

/// When it is told to: everything that waits is at its post by then.
const TOLD: std::ops::Range<f64> = 1.0..1.5;

/// What uvicorn says when requests are answered from then on.
const CAN_ANSWER: &str = "Application startup complete";

/// Which engine, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// For the table.
    engine: &'static str,
    model: &'static str,
    memory: &'static str,
    rounds: usize,
    /// Rounds in which the slow scripts run: each takes five seconds more.
    slow_rounds: usize,
    /// The engine loads until [`GO`] is there.
    go: bool,
    ready_within: Duration,
}

impl Plan {
    /// The stub.
    pub fn stub(effort: Effort) -> Self {
        Self {
            engine: "stub",
            model: "bench-loads",
            memory: "--mem=500",
            rounds: effort.rounds(13, 4),
            slow_rounds: effort.rounds(5, 1),
            go: true,
            ready_within: Duration::from_secs(30),
        }
    }

    /// vLLM.
    pub fn vllm(effort: Effort) -> Self {
        let rounds = effort.rounds(5, 1);
        Self {
            engine: "vLLM",
            model: "tiny",
            memory: "--mem=12000",
            rounds,
            slow_rounds: rounds,
            go: false,
            ready_within: Duration::from_secs(240),
        }
    }
}

/// A script by hand: its interval in seconds, and how many of them run.
struct Script {
    interval: f64,
    copies: usize,
}

const SLOW: Script = Script {
    interval: 5.0,
    copies: 4,
};
const FAST: Script = Script {
    interval: 0.2,
    copies: 2,
};

/// What was seen.
#[derive(Default)]
struct Seen {
    from_unit: Samples,
    from_ready: Samples,
    slow: Samples,
    fast: Samples,
}

/// Runs it.
pub fn measure(site: &Site, plan: &Plan) -> Result<Vec<Row>> {
    let registry = Registry::open(site.lab.login())?;
    let mut seen = Seen::default();
    for number in 0..plan.rounds {
        let scripts = match number < plan.slow_rounds {
            true => &[FAST, SLOW][..],
            false => &[FAST][..],
        };
        round(site, plan, &registry, scripts, &mut seen)?;
    }
    let engine = plan.engine;
    let from_ready = |rival: &str, samples: &Samples| {
        Row::new(
            format!("{engine}: can answer → listed"),
            seen.from_ready.quantile(0.5),
            "ms",
            Goal::None,
        )
        .beside(rival, samples.quantile(0.5))
    };
    Ok(vec![
        Row::new(
            format!("{engine}: first unit of work answered → listed"),
            seen.from_unit.quantile(0.5),
            "ms",
            Goal::AtMost(GOAL),
        ),
        from_ready("script, every 5 s", &seen.slow),
        from_ready("script, every 0.2 s", &seen.fast),
    ])
}

fn round(site: &Site, plan: &Plan, registry: &Registry, scripts: &[Script], seen: &mut Seen) -> Result<()> {
    let node = site.node(WITH);
    let mut gateway = bed::gateway(site)?;
    registry.clear();
    let mut go = plan
        .go
        .then(|| Duration::from_secs_f64(rand::rng().random_range(TOLD)));
    let model = format!("--serve-model={}", plan.model);
    let arguments = [&model, plan.memory, "--serve-wait=no", "-w", node.name()];
    let job = site.sbatch("alice", &arguments, &job_script(registry, scripts))?;
    let mut log = Log::open(site, &job)?;

    let (mut ready, mut unit, mut listed) = (None, None, None);
    let start = Instant::now();
    while unit.is_none() || listed.is_none() {
        ensure!(
            start.elapsed() < plan.ready_within,
            "{} is not listed after {} s: {}",
            plan.model,
            plan.ready_within.as_secs(),
            job.explain()
        );
        if go.is_some_and(|go| start.elapsed() >= go) {
            node.install_file(GO, "", 0o644)?;
            go = None;
        }
        if unit.is_none() {
            log.read()?;
            let now = Instant::now();
            if ready.is_none() && log.text.contains(CAN_ANSWER) {
                ready = Some(now);
            }
            if log.text.lines().any(is_unit_of_work) {
                unit = Some(now);
            }
        }
        if ready.is_some() && listed.is_none() && bed::listed(&mut gateway, plan.model)? {
            listed = Some(Instant::now());
        }
        std::thread::sleep(LOOK);
    }
    let (ready, unit, listed) = (
        ready.context("the engine never said that it can answer")?,
        unit.context("no unit of work")?,
        listed.context("not listed")?,
    );
    seen.from_unit.push(vec![between(unit, listed)]);
    seen.from_ready.push(vec![between(ready, listed)]);

    let expected: usize = scripts.iter().map(|script| script.copies).sum();
    let came = wait_for(Duration::from_secs(15), "the scripts to register", || {
        let noted = registry.noted();
        Ok((noted.len() >= expected).then_some(noted))
    })
    .with_context(|| job.explain())?;
    for (script, samples) in [(SLOW, &mut seen.slow), (FAST, &mut seen.fast)] {
        let mine = came.iter().filter(|(name, _)| *name == script.name());
        let values: Vec<f64> = mine.map(|(_, at)| between(ready, *at)).collect();
        if !values.is_empty() {
            samples.push(values);
        }
    }
    job.cancel()?;
    wait_idle(node)?;
    if plan.go {
        node.inside(|| std::fs::remove_file(GO))??;
    }
    Ok(())
}

/// Milliseconds; less than nothing if it came first.
fn between(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_secs_f64() * 1000.0,
        None => from.duration_since(to).as_secs_f64() * -1000.0,
    }
}

impl Script {
    fn name(&self) -> String {
        format!("every-{}", self.interval)
    }
}

/// Runs the scripts beside each other, on the engine's own socket.
fn job_script(registry: &Registry, scripts: &[Script]) -> String {
    let mut text = format!(
        r#"until socket=$(compgen -G "/tmp/sserve-$SLURM_JOB_ID-*/s"); do sleep 0.02; done
script() {{
    sleep "$1"
    until curl -sf -o /dev/null --unix-socket "$socket" http://engine/health; do sleep "$2"; done
    curl -sf -o /dev/null -X POST "http://{}/$3"
}}
"#,
        registry.address
    );
    for script in scripts {
        for copy in 0..script.copies {
            // One in each part of the interval.
            let part = (copy as f64 + rand::rng().random::<f64>()) / script.copies as f64;
            text += &format!(
                "script {:.3} {} {} &\n",
                part * script.interval,
                script.interval,
                script.name()
            );
        }
    }
    text + "wait\nsleep 300\n"
}

/// An access line of the engine's: a question that was answered.
fn is_unit_of_work(line: &str) -> bool {
    line.contains("POST /v1/chat/completions") && line.contains(" 200")
}

/// The engine's log, in the home that all nodes share.
struct Log {
    file: File,
    text: String,
    offset: u64,
}

impl Log {
    fn open(site: &Site, job: &Job<'_>) -> Result<Self> {
        let path = format!("/home/alice/serve-{}.log", job.id);
        let login = site.lab.login();
        let file = wait_for(Duration::from_secs(20), "the engine's log", || {
            Ok(login.inside(|| File::open(&path))?.ok())
        });
        Ok(Self {
            file: file.with_context(|| job.explain())?,
            text: String::new(),
            offset: 0,
        })
    }

    /// Takes in what is new.
    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = self
                .file
                .read_at(&mut buffer, self.offset)
                .context("can't read the engine's log")?;
            if read == 0 {
                return Ok(());
            }
            self.offset += read as u64;
            self.text += &String::from_utf8_lossy(&buffer[..read]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_an_answered_question_in_the_engines_log() {
        assert!(is_unit_of_work(
            r#"(APIServer pid=7) INFO:      - "POST /v1/chat/completions HTTP/1.1" 200 OK"#
        ));
        assert!(!is_unit_of_work(r#"INFO:  - "GET /health HTTP/1.1" 200 OK"#));
        assert!(!is_unit_of_work(
            r#"INFO:  - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable"#
        ));
    }

    #[test]
    fn what_came_first_is_less_than_nothing() {
        let now = Instant::now();
        let later = now + Duration::from_millis(5);
        assert_eq!((between(now, later), between(later, now)), (5.0, -5.0));
    }
}
