//! What a scenario works on: a job with a model that serves, the node it is on, and hands for everything that can go wrong there.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_lab::{Node, Running, wait_for};

use super::watch::Watch;
use crate::job::Job;
use crate::site::Site;

/// How long what should come may take.
const SOON: Duration = Duration::from_secs(30);

/// One scenario at work.
pub struct Scene<'a> {
    /// The site.
    pub site: &'a Site,
    /// Where the model is.
    pub node: &'a Node,
    /// The job it belongs to.
    pub job: Job<'a>,
    /// The launch that serves.
    pub generation: String,
    /// What clients see.
    pub watch: &'a Watch,
    pub(super) struck: Cell<Option<Instant>>,
}

impl Scene<'_> {
    /// Now comes what the bound counts from.
    pub fn strike(&self) {
        self.struck.set(Some(Instant::now()));
    }

    /// A command of root's on the controller: `scontrol`, `scancel`.
    pub fn slurm(&self, argv: &[&str]) -> Result<String> {
        let controller = self.site.lab.controller();
        controller.command("root", argv.iter().copied()).run()
    }

    /// A command of a user's on the job's node.
    pub fn on_node(&self, user: &str, argv: &[&str]) -> Result<String> {
        self.node.command(user, argv.iter().copied()).run()
    }

    /// A command of the job's owner, on the login node.
    pub fn owner(&self, argv: &[&str]) -> Result<String> {
        let login = self.site.lab.login();
        login.command(&self.job.user, argv.iter().copied()).run()
    }

    /// The job's number as text.
    pub fn id(&self) -> String {
        self.job.id.to_string()
    }

    /// Lets the job's script end.
    pub fn release_script(&self) -> Result<()> {
        self.owner(&["touch", &format!("go-{}", self.job.id)]).map(drop)
    }

    /// Waits for what should come soon.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        wait_for(SOON, what, || Ok(condition()?.then_some(())))
    }

    /// Lets one and a half leases go by.
    pub fn longer_than_the_lease(&self) -> Result<()> {
        let end = Instant::now() + self.site.lease.mul_f64(1.5);
        wait_for(self.site.lease * 2, "one and a half leases to be over", || {
            Ok((Instant::now() >= end).then_some(()))
        })
    }

    /// Waits until so many more requests have been answered with 200.
    pub fn until_answered(&self, more: usize) -> Result<()> {
        let wanted = self.watch.answered() + more;
        self.until("more answers", || Ok(self.watch.answered() >= wanted))
            .with_context(|| self.watch.answers())
    }

    /// The process of the job's on the node that `picks` picks.
    pub fn process(&self, what: &str, picks: impl Fn(&Running) -> bool) -> Result<Running> {
        let mine = format!("SLURM_JOB_ID={}", self.job.id);
        let found = self.node.processes()?.into_iter().find(|running| {
            let environ = std::fs::read(format!("/proc/{}/environ", running.process.pid)).unwrap_or_default();
            picks(running)
                && environ
                    .split(|byte| *byte == 0)
                    .any(|entry| entry == mine.as_bytes())
        });
        found.with_context(|| format!("no {what} of job {} on {}", self.job.id, self.node.name()))
    }

    /// The runner of the job.
    pub fn runner(&self) -> Result<Running> {
        self.process("runner", |running| {
            let mut words = running.command.split(' ');
            words.next().is_some_and(|first| first.ends_with("slurm-serve")) && words.next() == Some("step")
        })
    }

    /// The processes of the srun client that holds the server's step, oldest first. They run outside the job.
    pub fn clients(&self) -> Result<Vec<Running>> {
        let mine = format!("--jobid={}", self.job.id);
        let mut found = self.node.processes()?;
        found.retain(|running| running.command.contains("srun ") && running.command.contains(&mine));
        // A fork bears the tick of its own birth; in the same tick the lower pid was first.
        found.sort_by_key(|running| (running.process.started, running.process.pid));
        ensure!(
            !found.is_empty(),
            "no srun client of job {} on {}",
            self.job.id,
            self.node.name()
        );
        Ok(found)
    }

    /// Marks the moment and sends a signal to one process.
    pub fn hit(&self, running: &Running, signal: Signal) -> Result<()> {
        self.strike();
        running.process.signal(signal)
    }
}
