//! A lab with the product installed, an agent on each compute node, and a gateway on the login node.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;
use serve_lab::{Background, Lab, LabSpec, Node, On, ProcessId, Product, Release, wait_for};

use crate::agents::Agents;
use crate::job::Job;
use crate::settings;

/// What stands where vLLM does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Our own stub: ready in milliseconds, with faults on demand.
    Stub,
    /// The stub, and vLLM's CPU build with the tiny model.
    Real,
}

/// What a node's settings say beyond: lines for `[agent]`, and tables.
pub type More = fn(&Lab, &Node) -> (String, String);

/// What a site is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// What models run on.
    pub engine: Engine,
    /// Slurm's release; `$SLURM` (22.05, 24.11, 26.05) chooses the default.
    pub release: Release,
    /// Compute nodes.
    pub nodes: u16,
    /// Further settings of slurm.conf.
    pub settings: Vec<(String, String)>,
    /// Further lines of slurm.conf.
    pub lines: Vec<String>,
    /// The product's own waits (a lease of 10 s) or short ones.
    pub short_waits: bool,
    /// The recipes that tests need, or those that the product ships.
    pub shipped_recipes: bool,
    /// What a node's settings say beyond: lines for `[agent]`, and tables.
    pub config: Option<More>,
    /// Does it outlive this process?
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Engine::Stub,
            release: release(),
            nodes: 2,
            settings: Vec::new(),
            lines: Vec::new(),
            short_waits: true,
            shipped_recipes: false,
            config: None,
            keep: false,
        }
    }
}

/// A small cluster as a site would have it.
pub struct Site {
    /// The lab below.
    pub lab: Lab,
    /// How long watchers believe what a node said that is silent now.
    pub lease: Duration,
    pub(crate) agents: Agents,
    gateway: Mutex<Option<Background>>,
}

/// Where programs log in a node.
const GATEWAY_LOG: &str = "/var/log/slurm-serve-gateway.log";

impl Site {
    /// Builds it. Every program is up and answering when this returns.
    pub fn up(options: &Options) -> Result<Self> {
        Self::up_with(options, |spec| spec)
    }

    /// Builds it on a lab that `shape` has had the last word on.
    pub fn up_with(options: &Options, shape: impl FnOnce(LabSpec) -> LabSpec) -> Result<Self> {
        let product = Product::locate()?;
        let stub = built(&product, "stub-engine", "serve-stub-engine")?;
        let stranger = built(&product, "stranger", "serve-e2e")?;
        let mut spec = LabSpec {
            release: options.release,
            nodes: options.nodes,
            vllm: options.engine == Engine::Real,
            keep: options.keep,
            ..LabSpec::default()
        }
        .product(&product)?
        .bind(On::All, "/usr/lib/slurm-serve/stub-engine", stub)
        .bind(On::All, "/usr/lib/slurm-serve/stranger", stranger)
        .prepare(|node| {
            node.command("root", ["useradd", "--system", "--no-create-home", "slurm-serve"])
                .run()?;
            Ok(())
        });
        let recipes = if options.shipped_recipes {
            shipped(options.engine)?
        } else {
            recipes(options.engine)
        };
        for (file, text) in recipes {
            spec = spec.file(On::All, format!("/etc/slurm-serve/models.d/{file}"), text, 0o644);
        }
        for (key, value) in &options.settings {
            spec = spec.setting(key, value);
        }
        spec.lines.extend(options.lines.iter().cloned());
        let lab = Lab::up(shape(spec))?;
        // Every node answers to its name everywhere; the gateway is on the login node.
        for node in lab.nodes() {
            let more = options.config.map(|more| more(&lab, node)).unwrap_or_default();
            let config = settings::config(lab.login().name(), options.short_waits, &more);
            node.install_file("/etc/slurm-serve/config.toml", &config, 0o644)?;
        }
        let site = Self {
            lab,
            lease: settings::lease(options.short_waits),
            agents: Agents::default(),
            gateway: Mutex::default(),
        };
        for node in site.lab.compute() {
            site.start_agent(node)?;
        }
        site.start_gateway()?;
        Ok(site)
    }

    /// A compute node, `1` is the first.
    pub fn node(&self, number: usize) -> &Node {
        &self.lab.compute()[number - 1]
    }

    /// Starts the gateway and waits until it answers.
    pub fn start_gateway(&self) -> Result<()> {
        let login = self.lab.login();
        let gateway = login
            .command("slurm-serve", ["slurm-serve", "gateway"])
            .folder("/")
            .spawn(GATEWAY_LOG)?;
        wait_for(Duration::from_secs(15), "the gateway to answer", || {
            if !gateway.is_running()? {
                bail!("it ended: {}", login.tail(GATEWAY_LOG, 5));
            }
            Ok(self.gateway("/health").ok())
        })?;
        *lock(&self.gateway) = Some(gateway);
        Ok(())
    }

    /// Sends a signal to the gateway.
    pub fn signal_gateway(&self, signal: Signal) -> Result<()> {
        let gateway = lock(&self.gateway);
        gateway.as_ref().context("no gateway runs")?.signal(signal)
    }

    /// Its process.
    pub fn gateway_process(&self) -> Result<ProcessId> {
        let gateway = lock(&self.gateway);
        Ok(gateway.as_ref().context("no gateway runs")?.process())
    }

    /// Ends the gateway.
    pub fn stop_gateway(&self) -> Result<()> {
        match lock(&self.gateway).take() {
            Some(gateway) => gateway.kill(),
            None => Ok(()),
        }
    }

    /// Starts the gateway if it is not there.
    pub(crate) fn repair_gateway(&self) -> Result<()> {
        let runs = match &*lock(&self.gateway) {
            Some(gateway) => {
                gateway.signal(Signal::SIGCONT)?;
                gateway.is_running()?
            }
            None => false,
        };
        if runs { Ok(()) } else { self.start_gateway() }
    }

    /// `GET` at the gateway: status and body.
    pub fn gateway(&self, path: &str) -> Result<(u16, String)> {
        self.curl(&[&format!("http://127.0.0.1:8700{path}")])
    }

    /// curl on the login node, as alice: status and body.
    pub fn curl(&self, arguments: &[&str]) -> Result<(u16, String)> {
        let mut argv = vec!["curl", "-sS", "--max-time", "30", "-w", "\n%{http_code}"];
        argv.extend(arguments);
        let output = self.lab.login().command("alice", argv).run()?;
        let (body, status) = output.rsplit_once('\n').context("curl printed no status")?;
        Ok((status.parse()?, body.to_owned()))
    }

    /// The models that the gateway routes to.
    pub fn models(&self) -> Result<Vec<String>> {
        let (status, body) = self.gateway("/v1/models")?;
        if status != 200 {
            bail!("/v1/models answered {status}: {body}");
        }
        let listed: Value = serde_json::from_str(&body)?;
        let data = listed["data"].as_array().context("/v1/models has no data")?;
        Ok(data
            .iter()
            .filter_map(|model| model["id"].as_str().map(str::to_owned))
            .collect())
    }

    /// Asks a model one question through the gateway: status and body.
    pub fn ask(&self, model: &str, more: &str) -> Result<(u16, String)> {
        let body = format!(
            r#"{{"model":{model:?},"messages":[{{"role":"user","content":"hello"}}],"max_tokens":8{more}}}"#
        );
        self.curl(&[
            "-H",
            "content-type: application/json",
            "-d",
            &body,
            "http://127.0.0.1:8700/v1/chat/completions",
        ])
    }

    /// Ends every job and waits until Slurm knows of none.
    pub fn cancel_all(&self) -> Result<()> {
        let controller = self.lab.controller();
        for state in ["--state=RUNNING", "--state=SUSPENDED", "--state=PENDING"] {
            controller
                .command("root", ["scancel", "--quiet", state])
                .output()?;
        }
        wait_for(Duration::from_secs(60), "all jobs to end", || {
            Ok(controller
                .command("root", ["squeue", "-h"])
                .run()?
                .trim()
                .is_empty()
                .then_some(()))
        })
    }

    /// Slurm's word on a node: `idle`, `drained`, …
    pub fn node_state(&self, node: &Node) -> Result<String> {
        let state = self
            .lab
            .controller()
            .command("root", ["sinfo", "-h", "-n", node.name(), "-o", "%T"])
            .run()?;
        // Once for each partition that it is in.
        Ok(state.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Slurm's version as it tells it, `24.11.5`.
    pub fn slurm_version(&self) -> Result<String> {
        let said = self.lab.login().command("alice", ["sinfo", "--version"]).run()?;
        Ok(said
            .trim()
            .trim_start_matches("slurm-wlm ")
            .trim_start_matches("slurm ")
            .to_owned())
    }

    /// Takes the lab down, and says what went wrong with that.
    pub fn down(self) -> Result<()> {
        self.lab.down()
    }

    /// sbatch as a user, from the login node; the script's lines follow the shebang.
    pub fn sbatch(&self, user: &str, arguments: &[&str], script: &str) -> Result<Job<'_>> {
        let login = self.lab.login();
        let mut argv = vec!["sbatch", "--parsable", "--mem=500"];
        argv.extend(arguments);
        let output = login
            .command(user, argv)
            .input(format!("#!/bin/bash\n{script}\n"))
            .run()?;
        self.job(user, &output)
    }

    /// The job of which `sbatch --parsable` told.
    pub fn job(&self, user: &str, output: &str) -> Result<Job<'_>> {
        let id = output.trim().split(';').next().unwrap_or_default().parse();
        let id = id.with_context(|| format!("sbatch said {output:?}"))?;
        Ok(Job {
            site: self,
            user: user.into(),
            id,
        })
    }
}

/// `$SLURM`, else the default.
fn release() -> Release {
    let named = std::env::var("SLURM").ok().filter(|name| !name.is_empty());
    named.map_or_else(Release::default, |name| {
        name.parse().unwrap_or_else(|error| panic!("$SLURM: {error}"))
    })
}

/// The admin's recipes: file name and text.
/// Those of a new installation, and one that can be served here.
fn shipped(engine: Engine) -> Result<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../slurm-conf/models.d");
    let mut recipes = vec![match engine {
        Engine::Stub => ("stub.toml".to_owned(), settings::stub_recipe("stub", &[], "")),
        Engine::Real => ("tiny.toml".to_owned(), settings::TINY.into()),
    }];
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        recipes.push((name, std::fs::read_to_string(entry.path())?));
    }
    Ok(recipes)
}

fn recipes(engine: Engine) -> Vec<(String, String)> {
    let stub =
        |name: &'static str, env: &[(&str, &str)], more: &str| (name, settings::stub_recipe(name, env, more));
    let other = |name: &'static str, from: &str, to: &str| {
        let text = settings::stub_recipe(name, &[], "");
        (name, text.replace(from, to))
    };
    let forever = [("STUB_LOAD_MS", "600000")];
    let (_, endless) = stub("endless", &forever, "");
    let mut recipes = vec![
        stub("stub", &[], "aliases = [\"stub-alias\"]"),
        stub("slow", &[("STUB_TOKEN_MS", "100"), ("STUB_TOKENS", "20")], ""),
        stub("busy", &[("STUB_TOKEN_MS", "20")], ""),
        stub(
            "watched",
            &[("STUB_TOKEN_MS", "20")],
            "unresponsive_after = \"2s\"",
        ),
        stub(
            "family",
            &[
                ("STUB_TOKEN_MS", "20"),
                ("STUB_CHILD", "1"),
                ("STUB_LEAVE_BEHIND", "1"),
            ],
            "",
        ),
        stub("loading", &forever, ""),
        stub(
            "hardy",
            &[],
            "restart_pause = \"1s\"\nmax_restarts = 2\nunresponsive_after = \"2s\"",
        ),
        ("endless", endless.replace("\"30s\"", "\"1s\"")),
        stub("late", &[("STUB_LOAD_MS", "1500")], ""),
        stub("dies", &[("STUB_FAIL", "engine-init")], ""),
        stub("nobody", &[], "publish = \"nobody\""),
        other("hungry", "gpus = 0", "gpus = 16"),
        other("pair", "gpus = 0", "gpus = 2"),
        other("missing", "/opt", "/opt/no/such/weights"),
        other(
            "no-engine",
            "/usr/lib/slurm-serve/stub-engine",
            "/opt/no/such/vllm",
        ),
    ];
    if engine == Engine::Real {
        recipes.push(("tiny", settings::TINY.into()));
    }
    let file = |(name, text)| (format!("{name}.toml"), text);
    recipes.into_iter().map(file).collect()
}

fn built(product: &Product, program: &str, package: &str) -> Result<PathBuf> {
    let path = product.built.join(program);
    if !path.is_file() {
        bail!(
            "there is no {}: build it first (cargo build -p {package})",
            path.display()
        );
    }
    Ok(path)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
