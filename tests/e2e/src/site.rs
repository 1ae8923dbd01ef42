//! A lab with the product installed, an agent on each compute node, and a gateway on the login node.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;
use serve_lab::{Background, Lab, LabSpec, Node, On, Product, wait_for};

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

/// What a site is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// What models run on.
    pub engine: Engine,
    /// Compute nodes.
    pub nodes: u16,
    /// Further settings of slurm.conf.
    pub settings: Vec<(String, String)>,
    /// Does it outlive this process?
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Engine::Stub,
            nodes: 2,
            settings: Vec::new(),
            keep: false,
        }
    }
}

/// A small cluster as a site would have it.
pub struct Site {
    /// The lab below.
    pub lab: Lab,
    agents: Mutex<Vec<(String, Background)>>,
    gateway: Mutex<Option<Background>>,
}

/// Where programs log in a node.
const AGENT_LOG: &str = "/var/log/slurm-serve-agent.log";
const GATEWAY_LOG: &str = "/var/log/slurm-serve-gateway.log";

impl Site {
    /// Builds it. Every program is up and answering when this returns.
    pub fn up(options: &Options) -> Result<Self> {
        Self::up_with(options, |spec| spec)
    }

    /// Builds it on a lab that `shape` has had the last word on.
    pub fn up_with(options: &Options, shape: impl FnOnce(LabSpec) -> LabSpec) -> Result<Self> {
        let product = Product::locate()?;
        let stub = stub_engine(&product)?;
        let mut spec = LabSpec {
            nodes: options.nodes,
            vllm: options.engine == Engine::Real,
            keep: options.keep,
            ..LabSpec::default()
        }
        .product(&product)?
        .bind(On::All, "/usr/lib/slurm-serve/stub-engine", stub)
        .prepare(|node| {
            node.command("root", ["useradd", "--system", "--no-create-home", "slurm-serve"])
                .run()?;
            Ok(())
        });
        for (file, text) in recipes(options.engine) {
            spec = spec.file(On::All, format!("/etc/slurm-serve/models.d/{file}"), text, 0o644);
        }
        for (key, value) in &options.settings {
            spec = spec.setting(key, value);
        }
        let lab = Lab::up(shape(spec))?;
        // Every node answers to its name everywhere; the gateway is on the login node.
        let config = settings::config(lab.login().name());
        for node in lab.nodes() {
            node.install_file("/etc/slurm-serve/config.toml", &config, 0o644)?;
        }
        let site = Self {
            lab,
            agents: Mutex::default(),
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

    /// Starts a node's agent and waits until it answers.
    pub fn start_agent(&self, node: &Node) -> Result<()> {
        let agent = node
            .command("root", ["slurm-serve", "agent"])
            .env("RUST_LOG", "info,slurm_serve=debug")
            .spawn(AGENT_LOG)?;
        let what = format!("the agent of {} to answer", node.name());
        let answers = wait_for(Duration::from_secs(15), &what, || {
            if !agent.is_running()? {
                bail!("it ended: {}", node.tail(AGENT_LOG, 5));
            }
            let socket = node
                .inside(|| std::os::unix::net::UnixStream::connect("/run/slurm-serve/agent.sock").is_ok())?;
            Ok(socket.then_some(()))
        });
        answers.with_context(|| node.tail(AGENT_LOG, 20))?;
        lock(&self.agents).push((node.name().to_owned(), agent));
        Ok(())
    }

    /// Sends a signal to the agent of a node.
    pub fn signal_agent(&self, node: &Node, signal: Signal) -> Result<()> {
        let agents = lock(&self.agents);
        let found = agents.iter().rev().find(|(name, _)| name == node.name());
        found
            .with_context(|| format!("no agent was started on {}", node.name()))?
            .1
            .signal(signal)
    }

    /// What a node's agent has logged, the last lines.
    pub fn agent_log(&self, node: &Node) -> String {
        node.tail(AGENT_LOG, 60)
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
        controller
            .command("root", ["scancel", "--quiet", "--state=RUNNING"])
            .output()?;
        controller
            .command("root", ["scancel", "--quiet", "--state=PENDING"])
            .output()?;
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
        Ok(state.trim().to_owned())
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
        let id = output.trim().split(';').next().unwrap_or_default().parse();
        let id = id.with_context(|| format!("sbatch said {output:?}"))?;
        Ok(Job {
            site: self,
            user: user.into(),
            id,
        })
    }
}

fn recipes(engine: Engine) -> Vec<(String, String)> {
    let stub = |name: &str, env: &[(&str, &str)], more: &str| {
        (format!("{name}.toml"), settings::stub_recipe(name, env, more))
    };
    let mut recipes = vec![
        stub("stub", &[], "aliases = [\"stub-alias\"]"),
        stub("slow", &[("STUB_TOKEN_MS", "100"), ("STUB_TOKENS", "20")], ""),
        stub("loading", &[("STUB_LOAD_MS", "600000")], ""),
        stub("late", &[("STUB_LOAD_MS", "1500")], ""),
        stub("dies", &[("STUB_FAIL", "engine-init")], ""),
        stub("nobody", &[], "publish = \"nobody\""),
        stub("hungry", &[], "").map_gpus(16),
        (
            "missing.toml".into(),
            settings::stub_recipe("missing", &[], "").replace("/opt", "/opt/no/such/weights"),
        ),
        (
            "no-engine.toml".into(),
            settings::stub_recipe("no-engine", &[], "")
                .replace("/usr/lib/slurm-serve/stub-engine", "/opt/no/such/vllm"),
        ),
    ];
    if engine == Engine::Real {
        recipes.push(("tiny.toml".into(), settings::TINY.into()));
    }
    recipes
}

trait MapGpus {
    fn map_gpus(self, gpus: u32) -> Self;
}

impl MapGpus for (String, String) {
    fn map_gpus(self, gpus: u32) -> Self {
        (self.0, self.1.replace("gpus = 0", &format!("gpus = {gpus}")))
    }
}

fn stub_engine(product: &Product) -> Result<PathBuf> {
    let path = product.built.join("stub-engine");
    if !path.is_file() {
        bail!(
            "there is no {}: build it first (cargo build -p serve-stub-engine)",
            path.display()
        );
    }
    Ok(path)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
