//! From a launch order to a started engine: everything that can fail before loading, each failure with its cause.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slurm_serve_proto::v1::{Cause, LaunchOrder, RunnerFacts, RunnerPhase};
use slurm_serve_recipe::{EngineCall, Recipe};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::checks;
use super::ending::Parts;
use super::engine::{Engine, Sources, environment};
use super::guard::Guard;
use super::leftovers::Leftovers;
use super::log::{Log, LogFile, Scrub};
use super::oom::OomKills;
use super::outcome::Failure;
use super::private::PrivateDir;
use super::ready::Probe;

/// What the parts of a launch need from the runner.
pub struct Ground<'a> {
    /// Which launch this is.
    pub generation: &'a str,
    /// Told along the way.
    pub facts: &'a watch::Sender<RunnerFacts>,
    /// The way of the log's lines to the agent.
    pub to_agent: mpsc::Sender<String>,
    /// Counts those that did not fit.
    pub dropped: Arc<std::sync::atomic::AtomicU64>,
}

/// What a launch has made so far: all of it must be undone at the end, however far it got.
#[derive(Default)]
pub struct Made {
    /// The recipe, once read.
    pub recipe: Option<Recipe>,
    /// The order's public name.
    pub model: String,
    /// The folder.
    pub private: Option<PrivateDir>,
    /// The log.
    pub log: Option<Log>,
    /// Where it is.
    pub log_path: String,
    /// Tells when everything that the engine printed has been taken in.
    pub log_end: Option<CancellationToken>,
    /// The guard, with its port.
    pub guard: Option<Guard>,
    /// The engine.
    pub engine: Option<Engine>,
    /// What it leaves behind.
    pub leftovers: Option<Arc<Mutex<Leftovers>>>,
    /// The memory cgroup's counter.
    pub oom: Option<OomKills>,
    /// How long the parts of the end may take.
    pub parts: Option<Parts>,
    /// What to look for while it loads.
    pub probe: Option<Probe>,
    /// How the engine is started, however often.
    start: Option<Start>,
}

/// How the engine is started.
#[derive(Clone)]
struct Start {
    argv: Vec<String>,
    environment: BTreeMap<String, String>,
    folder: PathBuf,
    /// SLURM_JOB_GPUS of the job on this node.
    gpus: String,
}

impl Made {
    /// Does what `order` says, up to an engine that loads behind a guard that says so.
    pub async fn launch(
        &mut self,
        order: &LaunchOrder,
        listener: Result<std::net::TcpListener, String>,
        ground: &Ground<'_>,
    ) -> Result<(), Failure> {
        self.model.clone_from(&order.public_name);
        let recipe = Recipe::parse_one(&order.recipe).map_err(|e| {
            Failure::new(
                Cause::InvalidRequest,
                format!("the recipe does not hold here: {e}"),
                "",
            )
        })?;
        let recipe = self.recipe.insert(recipe).clone();
        let parts = Parts::fit(
            Duration::from_millis(order.end_budget_ms.into()),
            Duration::from_millis(order.settle_ms.into()),
            recipe.drain_timeout,
        );
        self.parts = Some(parts);

        let private = PrivateDir::make(Path::new(&order.scratch_dir), order.job_id)
            .map_err(|e| Failure::internal(format!("no folder for the engine: {e}")))?;
        let private = self.private.insert(private);
        let (socket, caches, tmp) = (private.socket(), private.caches(), private.tmp());
        let folder = private.path().to_owned();

        self.open_log(order, &folder, ground);
        let listener = listener.and_then(ready).map_err(|why| {
            Failure::new(
                Cause::NoPort,
                format!("the agent did not hand the model's port over: {why}"),
                "see the agent's log on this node",
            )
        })?;
        let guard = Guard::open(
            listener,
            &socket,
            &order.key,
            &order.public_name,
            ground.generation,
            // Checked by the agent; what is no network lets nobody in.
            order.peers.iter().filter_map(|peer| peer.parse().ok()).collect(),
        )
        .map_err(|e| Failure::internal(format!("the guard cannot start: {e}")))?;
        let port = guard.address().port();
        self.guard = Some(guard);

        let served: Vec<String> = std::iter::once(&order.public_name)
            .chain(&order.aliases)
            .cloned()
            .collect();
        let call = EngineCall {
            recipe: &recipe,
            extra_args: &order.extra_args,
            served_names: &served,
            socket: &socket,
            shutdown_timeout: parts.shutdown_timeout(),
        };
        let environment = environment(&Sources {
            runner: &own_environment(),
            passed: &order.env.clone().into_iter().collect(),
            call: &call.env(
                narrow(order.internal_port),
                narrow(order.internal_port_count),
                &caches,
            ),
            tmp: &tmp,
        });
        // Only now, so that a failure of these is told by a model that has a port and a log.
        ground.facts.send_modify(|facts| {
            facts.phase = RunnerPhase::Loading as i32;
            facts.port = port.into();
        });
        self.probe = Some(Probe {
            socket: socket.clone(),
            name: order.public_name.clone(),
            task: recipe.task,
            min_version: recipe.min_engine_version.clone(),
        });
        self.start = Some(Start {
            argv: call.argv(),
            environment,
            folder,
            gpus: order.gpus.clone(),
        });
        self.start_engine(ground.facts).await
    }

    /// Starts the engine, for the first time or again: what can be known beforehand is looked at each time.
    pub async fn start_engine(&mut self, facts: &watch::Sender<RunnerFacts>) -> Result<(), Failure> {
        let (Some(start), Some(recipe), Some(log)) =
            (self.start.clone(), self.recipe.clone(), self.log.clone())
        else {
            return Err(Failure::internal("nothing was prepared"));
        };
        checks::before_loading(&recipe, &start.gpus, &start.environment)?;
        if let Some(private) = &self.private {
            // Of an engine that was killed: the next one could not listen there.
            let _ = std::fs::remove_file(private.socket());
        }
        self.oom = Some(OomKills::now());
        self.leftovers = Some(Arc::new(Mutex::new(Leftovers::before())));
        self.start(&start.argv, &start.environment, &start.folder, &log)
            .await?;
        let pid = self.engine.as_ref().map_or(0, Engine::pid);
        facts.send_modify(|facts| facts.engine_pid = pid.unsigned_abs());
        Ok(())
    }

    fn open_log(&mut self, order: &LaunchOrder, last_resort: &Path, ground: &Ground<'_>) {
        let file = LogFile::open(&order.log_dirs, last_resort, order.job_id);
        self.log_path = file.path();
        let note = file.note().to_owned();
        ground.facts.send_modify(|facts| {
            facts.log_path.clone_from(&self.log_path);
            facts.log_note = note;
        });
        let log = Log::new(
            file,
            Scrub::new(&order.key, &order.env),
            ground.to_agent.clone(),
            ground.dropped.clone(),
            ground.facts.clone(),
        );
        self.log = Some(log);
    }

    async fn start(
        &mut self,
        argv: &[String],
        environment: &BTreeMap<String, String>,
        folder: &Path,
        log: &Log,
    ) -> Result<(), Failure> {
        log.say(&format!("{} as: {}", self.model, shown(argv))).await;
        let (engine, output) = Engine::start(argv, environment, folder).map_err(|e| {
            let program = argv.first().map_or("", String::as_str);
            Failure::new(
                Cause::EngineNotFound,
                format!("the engine {program} cannot be started: {e}"),
                "correct `engine` in the recipe",
            )
        })?;
        self.engine = Some(engine);
        let end = log
            .follow(output)
            .map_err(|e| Failure::internal(format!("the engine's log cannot be read: {e}")))?;
        self.log_end = Some(end);
        Ok(())
    }
}

/// The listener as the runtime takes it. The error is one line.
fn ready(listener: std::net::TcpListener) -> Result<TcpListener, String> {
    let set = listener.set_nonblocking(true);
    set.and_then(|()| TcpListener::from_std(listener))
        .map_err(|e| e.to_string())
}

/// Variables that are not text can't be passed on and don't matter to an engine.
fn own_environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// A port that isn't one is none.
fn narrow(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(0)
}

/// A command line that could be pasted into a shell.
fn shown(argv: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let words = argv.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted() {
        let argv = ["vllm", "serve", "a b", "it's", "--x=1", ""].map(String::from);
        assert_eq!(shown(&argv), r"vllm serve 'a b' 'it'\''s' --x=1 ''");
    }
}
