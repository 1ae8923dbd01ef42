//! What must hold on a site whatever a test did: nothing of its jobs is left, and no node is out of service.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serve_lab::{Snapshot, wait_for};

use crate::site::Site;
use crate::tour::snapshots;

/// How long a node may take until nothing is left of a test's jobs: KillWait and an epilog, with room to spare.
const CLEAN: Duration = Duration::from_secs(30);
/// How long jobs may take to end.
const END: Duration = Duration::from_secs(60);

impl Site {
    /// Runs `test`, puts right what it may have broken, ends its jobs, and looks at what is left. Jobs that were there before stay.
    pub fn checked<T>(&self, test: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let (before, jobs) = (snapshots(self)?, self.jobs()?);
        let result = test(self);
        let tidied = self.tidy(&before, &jobs);
        // What the test itself says explains more than what it left.
        let value = result?;
        tidied.map(|()| value)
    }

    fn tidy(&self, before: &[Snapshot], jobs: &BTreeSet<String>) -> Result<()> {
        self.repair()?;
        let mut told = BTreeSet::new();
        wait_for(END, "the test's jobs to end", || {
            let now = self.jobs()?;
            let left: Vec<&String> = now.difference(jobs).collect();
            for job in &left {
                if told.insert((*job).clone()) {
                    // One that ended meanwhile is no error.
                    let argv = ["scancel", "--quiet", job.as_str()];
                    self.lab.controller().command("root", argv).output()?;
                }
            }
            Ok(left.is_empty().then_some(()))
        })?;
        for (node, before) in self.lab.compute().iter().zip(before) {
            node.wait_until_clean(before, CLEAN)?;
            let state = self.node_state(node).context("after the test")?;
            if state.contains("drain") || state.contains("down") {
                bail!("{} is {state} after the test", node.name());
            }
        }
        Ok(())
    }

    /// Puts nodes back into service after a test that failed in between.
    pub(crate) fn resume_nodes(&self) -> Result<()> {
        for node in self.lab.compute() {
            let state = self.node_state(node)?;
            if state.contains("drain") || state.contains("down") {
                let name = format!("NodeName={}", node.name());
                let argv = ["scontrol", "update", &name, "State=RESUME"];
                self.lab.controller().command("root", argv).run()?;
            }
        }
        Ok(())
    }

    /// The jobs that Slurm has not done with.
    fn jobs(&self) -> Result<BTreeSet<String>> {
        let queue = self
            .lab
            .controller()
            .command("root", ["squeue", "-h", "-a", "-o", "%A"])
            .run()?;
        Ok(queue.split_whitespace().map(str::to_owned).collect())
    }
}
