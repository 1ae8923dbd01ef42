//! Programs of this machine in the network of a node.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use serve_lab::wait_for;

use crate::site::Site;

/// A proxy that runs until it is dropped.
pub struct Outside<'a> {
    site: &'a Site,
    child: Child,
    command: Command,
    health: &'static str,
    /// Where it listens, at the login node's address.
    pub port: u16,
}

/// LiteLLM's key, for whoever asks and for whoever registers.
pub const MASTER: &str = "sk-master";
/// Where each listens.
pub const LITELLM: u16 = 4000;
/// sglang-router.
pub const ROUTER: u16 = 30000;
/// smg.
pub const SMG: u16 = 30010;
/// vllm-router.
pub const VLLM_ROUTER: u16 = 30020;

fn home(name: &str) -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../proxies/install.sh");
    let done = Command::new(script).arg(name).status()?;
    ensure!(done.success(), "{script} {name} failed");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache"));
    Ok(cache.join("slurm-serve/proxies").join(name))
}

impl<'a> Outside<'a> {
    fn start(
        site: &'a Site,
        program: &Path,
        health: &'static str,
        port: u16,
        shape: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", site.lab.login().init().pid))
            .arg(program)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shape(&mut command);
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        let this = Self {
            site,
            child,
            command,
            health,
            port,
        };
        this.up()?;
        Ok(this)
    }

    /// LiteLLM with a table of models in `folder`.
    pub fn litellm(site: &'a Site, folder: &Path) -> Result<Self> {
        Self::litellm_with(site, folder, "model_list: []\n", true)
    }

    /// LiteLLM with these models of its own; it stores others, or has no table for them.
    pub fn litellm_with(site: &'a Site, folder: &Path, models: &str, stores: bool) -> Result<Self> {
        let config = folder.join("config.yaml");
        std::fs::write(
            &config,
            format!("{models}general_settings:\n  master_key: {MASTER}\n"),
        )?;
        let program = home("litellm")?.join("bin/uvicorn");
        Self::start(site, &program, "/health/liveliness", LITELLM, |command| {
            command
                .args([
                    "litellm.proxy.proxy_server:app",
                    "--host",
                    site.lab.login().address(),
                ])
                .args(["--port", &LITELLM.to_string()])
                .current_dir(folder)
                .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
                .env("CONFIG_FILE_PATH", &config);
            if stores {
                command
                    .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../proxies"))
                    .env("PRISMA_STAND_IN", folder.join("db.json"))
                    .env("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
                    .env("STORE_MODEL_IN_DB", "True")
                    .env("LITELLM_SALT_KEY", "sk-salt");
            }
        })
    }

    /// sglang-router.
    pub fn router(site: &'a Site) -> Result<Self> {
        Self::of_three(site, "sglang-router", "bin/smg", ROUTER)
    }

    /// smg.
    pub fn smg(site: &'a Site) -> Result<Self> {
        Self::of_three(site, "smg", "bin/smg", SMG)
    }

    /// vllm-router.
    pub fn vllm_router(site: &'a Site) -> Result<Self> {
        Self::of_three(site, "vllm-router", "bin/vllm-router", VLLM_ROUTER)
    }

    fn of_three(site: &'a Site, name: &str, program: &str, port: u16) -> Result<Self> {
        let home = home(name)?;
        let vocabularies = home.with_file_name("tiktoken");
        Self::start(site, &home.join(program), "/workers", port, |command| {
            if program == "bin/smg" {
                command.arg("launch");
            }
            command
                .args([
                    "--enable-igw",
                    "--policy",
                    "round_robin",
                    "--health-check-interval-secs",
                    "2",
                ])
                .args(["--host", site.lab.login().address(), "--port", &port.to_string()])
                .args([
                    "--prometheus-host",
                    "127.0.0.1",
                    "--prometheus-port",
                    &(port + 1).to_string(),
                ])
                .env("TIKTOKEN_ENCODINGS_BASE", vocabularies);
        })
    }

    /// Has a router know a worker, and waits until it does.
    pub fn add_worker(&self, url: &str, model: &str, key: &str) -> Result<()> {
        let body =
            serde_json::json!({ "url": url, "model_id": model, "api_key": key, "worker_type": "regular" });
        let (status, said) = self.site.curl(&[
            "-H",
            "content-type: application/json",
            "-d",
            &body.to_string(),
            &self.url("/workers"),
        ])?;
        ensure!((200..300).contains(&status), "{status} {said}");
        wait_for(Duration::from_secs(30), "the router to use it", || {
            Ok((self.chat(model)?.0 == 200).then_some(()))
        })
    }

    /// Resident memory of it and of its children, in MiB.
    pub fn memory(&self) -> Result<f64> {
        let mut total = 0.0;
        let mut all = vec![self.child.id()];
        while let Some(pid) = all.pop() {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib: f64 = line
                .and_then(|line| line.split_whitespace().next()?.parse().ok())
                .unwrap_or(0.0);
            total += kib / 1024.0;
            let children =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        Ok(total)
    }

    fn up(&self) -> Result<()> {
        wait_for(Duration::from_secs(120), "the proxy to answer", || {
            let answer = self.get(self.health);
            Ok(answer.is_ok_and(|(status, _)| status == 200).then_some(()))
        })
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = self.command.spawn()?;
        self.up()
    }

    /// `http://ADDRESS:PORT` and this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}:{}{path}", self.site.lab.login().address(), self.port)
    }

    /// Status and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        self.site
            .curl(&["-H", &format!("Authorization: Bearer {MASTER}"), &self.url(path)])
    }

    /// Status and body of a short chat.
    pub fn chat(&self, model: &str) -> Result<(u16, String)> {
        let body = format!(
            r#"{{"model":{model:?},"messages":[{{"role":"user","content":"hello"}}],"max_tokens":4}}"#
        );
        let key = format!("Authorization: Bearer {MASTER}");
        self.site.curl(&[
            "-H",
            &key,
            "-H",
            "content-type: application/json",
            "-d",
            &body,
            &self.url("/v1/chat/completions"),
        ])
    }

    /// The jobs of our rows in it, ascending.
    pub fn jobs(&self) -> Result<Vec<u64>> {
        let (path, list, marks, job) = match self.port {
            LITELLM => ("/v1/model/info", "data", "model_info", "slurm_serve_job"),
            _ => ("/workers", "workers", "metadata", "slurm-serve.job"),
        };
        let (_, text) = self.get(path)?;
        let all: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let rows = all[list].as_array().map_or(&[][..], Vec::as_slice);
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let mut jobs: Vec<u64> = rows.iter().filter_map(|row| number(&row[marks][job])).collect();
        jobs.sort_unstable();
        // LiteLLM has a row for each alias.
        jobs.dedup();
        Ok(jobs)
    }

    /// Waits until its rows are those of these jobs.
    pub fn has(&self, jobs: &[u32], limit: Duration) -> Result<()> {
        let wanted: Vec<u64> = jobs.iter().map(|job| u64::from(*job)).collect();
        let mut last = Vec::new();
        wait_for(limit, "the proxy to list these jobs", || {
            last = self.jobs()?;
            Ok((last == wanted).then_some(()))
        })
        .with_context(|| format!("port {}: {last:?}, not {wanted:?}", self.port))
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
