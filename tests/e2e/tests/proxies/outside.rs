//! Programs of this machine in the network of a node.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use serve_e2e::Site;
use serve_lab::wait_for;

/// A proxy that runs until it is dropped.
pub struct Outside<'a> {
    site: &'a Site,
    child: Child,
    command: Command,
    health: &'static str,
    pub port: u16,
}

/// LiteLLM's key, for whoever asks and for whoever registers.
pub const MASTER: &str = "sk-master";
pub const LITELLM: u16 = 4000;
pub const ROUTER: u16 = 30000;

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

    pub fn litellm(site: &'a Site, folder: &Path) -> Result<Self> {
        let config = folder.join("config.yaml");
        std::fs::write(
            &config,
            format!("model_list: []\ngeneral_settings:\n  master_key: {MASTER}\n"),
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
                .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../proxies"))
                .env("PRISMA_STAND_IN", folder.join("db.json"))
                .env("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
                .env("STORE_MODEL_IN_DB", "True")
                .env("LITELLM_SALT_KEY", "sk-salt")
                .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
                .env("CONFIG_FILE_PATH", &config);
        })
    }

    pub fn router(site: &'a Site) -> Result<Self> {
        let home = home("sglang-router")?;
        let vocabularies = home.with_file_name("tiktoken");
        Self::start(site, &home.join("bin/smg"), "/workers", ROUTER, |command| {
            command
                .args([
                    "launch",
                    "--enable-igw",
                    "--policy",
                    "round_robin",
                    "--health-check-interval-secs",
                    "2",
                ])
                .args([
                    "--host",
                    site.lab.login().address(),
                    "--port",
                    &ROUTER.to_string(),
                ])
                .args(["--prometheus-host", "127.0.0.1", "--prometheus-port", "30001"])
                .env("TIKTOKEN_ENCODINGS_BASE", vocabularies);
        })
    }

    fn up(&self) -> Result<()> {
        wait_for(Duration::from_secs(120), "the proxy to answer", || {
            let answer = self.get(self.health);
            Ok(answer.is_ok_and(|(status, _)| status == 200).then_some(()))
        })
    }

    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = self.command.spawn()?;
        self.up()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}:{}{path}", self.site.lab.login().address(), self.port)
    }

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
