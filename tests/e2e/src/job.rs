//! A job of the lab, as its owner sees it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use serve_lab::{Node, ProcessId, wait_for};

use crate::site::Site;

/// A job that was submitted.
#[derive(Clone)]
pub struct Job<'a> {
    pub(crate) site: &'a Site,
    pub(crate) user: String,
    /// Slurm's job id.
    pub id: u32,
}

impl Job<'_> {
    /// Slurm's word on it: `RUNNING`, `COMPLETED`, …
    pub fn state(&self) -> Result<String> {
        self.field("JobState")
    }

    /// A field of `scontrol show job`.
    pub fn field(&self, name: &str) -> Result<String> {
        let text = self
            .site
            .lab
            .login()
            .command("root", ["scontrol", "show", "job", "-o", &self.id.to_string()])
            .run()?;
        let prefix = format!("{name}=");
        let found = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(&prefix));
        found
            .map(str::to_owned)
            .with_context(|| format!("scontrol shows no {name} for job {}: {text}", self.id))
    }

    /// The pid of the srun client of its model, a process of its owner's on `node`, outside the job.
    pub fn srun_client(&self, node: &Node) -> Result<i32> {
        let wanted = format!("--jobid={} ", self.id);
        let client = node
            .processes()?
            .into_iter()
            .find(|running| running.command.contains(&wanted) && running.uid != 0);
        Ok(client.context("no srun client")?.process.pid)
    }

    /// Waits for one of Slurm's states.
    pub fn wait_state(&self, wanted: &[&str]) -> Result<String> {
        let what = format!("job {} to be {}", self.id, wanted.join(" or "));
        wait_for(Duration::from_secs(60), &what, || {
            let state = self.state()?;
            Ok(wanted.contains(&state.as_str()).then_some(state))
        })
        .with_context(|| self.explain())
    }

    /// Waits until it is over and fully cleaned up.
    pub fn wait_end(&self) -> Result<String> {
        self.wait_state(&[
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "TIMEOUT",
            "NODE_FAIL",
            "PREEMPTED",
            "OUT_OF_MEMORY",
        ])
    }

    /// scancel by its owner.
    pub fn cancel(&self) -> Result<()> {
        self.sserve_user(["scancel", &self.id.to_string()]).map(|_| ())
    }

    fn sserve_user<const N: usize>(&self, argv: [&str; N]) -> Result<String> {
        self.site.lab.login().command(&self.user, argv).run()
    }

    /// What its script and its tasks have written (stdout and stderr together).
    pub fn output(&self) -> String {
        let path = format!("/home/{}/slurm-{}.out", self.user, self.id);
        self.site.lab.login().read_text(path).unwrap_or_default()
    }

    /// Waits until its output has this in it.
    pub fn wait_output(&self, text: &str) -> Result<String> {
        let what = format!("{text:?} in the output of job {}", self.id);
        wait_for(Duration::from_secs(60), &what, || {
            let output = self.output();
            Ok(output.contains(text).then_some(output))
        })
        .with_context(|| self.explain())
    }

    /// Its model, by `sserve status --json` of its owner, on the login node.
    pub fn model(&self) -> Result<Value> {
        self.model_seen_from(self.site.lab.login())
    }

    /// Its model as its owner sees it from `node`.
    pub fn model_seen_from(&self, node: &Node) -> Result<Value> {
        let text = node
            .command(&self.user, ["sserve", "status", "--json", &self.id.to_string()])
            .run()?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Its runner's process on `node`.
    pub fn runner(&self, node: &Node) -> Result<ProcessId> {
        let id = format!("SLURM_JOB_ID={}", self.id);
        let found = node.processes()?.into_iter().find(|running| {
            // The client's command line names the runner's.
            let is_runner =
                running.command.ends_with("slurm-serve step") && !running.command.contains("srun ");
            let environ = || std::fs::read(format!("/proc/{}/environ", running.process.pid));
            is_runner
                && environ().is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == id.as_bytes()))
        });
        let found = found.with_context(|| format!("job {} has no runner on {}", self.id, node.name()))?;
        Ok(found.process)
    }

    /// What its model is asked by, and with which key: as `sserve url --env` tells its owner.
    pub fn endpoint(&self) -> Result<(String, String)> {
        let argv = ["sserve", "url", "--env", &self.id.to_string()];
        let said = self.site.say(&self.user, &argv, "", &[])?;
        let value = |name: &str| {
            let prefix = format!("export {name}=");
            let found = said.out.lines().find_map(|line| line.strip_prefix(&prefix));
            found
                .map(|value| value.trim_matches('\'').to_owned())
                .with_context(|| format!("{said:?}"))
        };
        Ok((value("SERVE_MODEL_URL")?, value("SERVE_MODEL_KEY")?))
    }

    /// Waits for a state of its model: `ready`, `failed`, …
    pub fn wait_model(&self, wanted: &str) -> Result<Value> {
        let what = format!("the model of job {} to be {wanted}", self.id);
        wait_for(Duration::from_secs(60), &what, || {
            let Ok(model) = self.model() else { return Ok(None) };
            let state = model["state"].as_str().unwrap_or_default().to_owned();
            if state == wanted {
                return Ok(Some(model));
            }
            if ["failed", "ended"].contains(&state.as_str()) {
                bail!("it is {state}: {model}");
            }
            Ok(None)
        })
        .with_context(|| self.explain())
    }

    /// Waits until its model on `node` is over by this cause (`cancelled`, `engine_died`, …).
    pub fn wait_cause(&self, node: &Node, wanted: &str) -> Result<Value> {
        let what = format!("the model of job {} to be over by {wanted}", self.id);
        wait_for(Duration::from_secs(60), &what, || {
            let Ok(model) = self.model_seen_from(node) else {
                return Ok(None);
            };
            Ok((model["ending"]["cause"] == wanted).then_some(model))
        })
        .with_context(|| self.explain())
    }

    /// Everything that helps to see why a test failed.
    pub fn explain(&self) -> String {
        let mut text = format!("--- output of job {}:\n{}", self.id, self.output());
        let log = format!("/home/{}/serve-{}.log", self.user, self.id);
        text += &format!(
            "--- the server's log ends:\n{}\n",
            self.site.lab.login().tail(&log, 20)
        );
        for node in self.site.lab.compute() {
            text += &format!("--- agent of {}:\n{}", node.name(), self.site.agent_log(node));
            text += &format!(
                "--- slurmd of {}:\n{}",
                node.name(),
                node.tail("/var/log/slurm/slurmd.log", 15)
            );
        }
        text
    }
}
