//! The stub engine of a running job, reached past the guard: what a test sees of it and does to it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use serve_lab::{Node, ProcessId, wait_for};

use crate::job::Job;

/// A job's stub engine.
pub struct Stub {
    node: Node,
    socket: String,
    /// The engine's process.
    pub process: ProcessId,
    /// Its command line, words joined by blanks.
    pub command: String,
}

impl Job<'_> {
    /// The stub that serves this job, once it runs.
    pub fn stub(&self) -> Result<Stub> {
        let what = format!("the engine of job {} to run", self.id);
        let folder = format!("/tmp/sserve-{}-", self.id);
        wait_for(Duration::from_secs(15), &what, || {
            for node in self.site.lab.compute() {
                let processes = node.processes()?;
                let found = processes.into_iter().find_map(|running| {
                    let mut words = running.command.split(' ').skip_while(|word| *word != "--uds");
                    let socket = words.nth(1)?.to_owned();
                    let ours = running.command.contains("stub-engine") && socket.starts_with(&folder);
                    ours.then_some((socket, running))
                });
                if let Some((socket, running)) = found {
                    return Ok(Some(Stub {
                        node: node.clone(),
                        socket,
                        process: running.process,
                        command: running.command,
                    }));
                }
            }
            Ok(None)
        })
        .with_context(|| self.explain())
    }
}

impl Stub {
    /// Where it runs.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What it says of itself: `running`, `waiting`, …
    pub fn state(&self) -> Result<Value> {
        self.call("state", None)
    }

    /// Waits until that many requests run.
    pub fn wait_running(&self, wanted: u64) -> Result<()> {
        let what = format!("{wanted} requests to run in the engine");
        wait_for(Duration::from_secs(15), &what, || {
            Ok((self.state()?["running"] == wanted).then_some(()))
        })
    }

    /// Makes it end with this exit code, as if by itself.
    pub fn exit(&self, code: u8) -> Result<()> {
        self.call("exit", Some(&format!("{{\"code\": {code}}}")))
            .map(drop)
    }

    /// Changes what it does from now on: a JSON object of the keys of `state.live`.
    pub fn set(&self, what: &str) -> Result<()> {
        self.call("set", Some(what)).map(drop)
    }

    /// Makes it take that much memory, for good.
    pub fn eat(&self, mib: u32) -> Result<()> {
        self.call("eat", Some(&format!("{{\"mib\": {mib}}}"))).map(drop)
    }

    fn call(&self, name: &str, body: Option<&str>) -> Result<Value> {
        let url = format!("http://stub/_stub/{name}");
        let mut argv = vec![
            "curl",
            "-sS",
            "--max-time",
            "10",
            "--unix-socket",
            &self.socket,
            &url,
        ];
        argv.extend(body.iter().flat_map(|body| ["-d", body]));
        let text = self.node.command("root", argv).run()?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }
}
