//! The lab under test, on the machine, by the command that people use.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serve_lab::{Background, NodeCommand, Snapshot};

use crate::machine::{Machine, SITE_CONF, TEST};

/// Its state folder. Not the default: whoever lists labs by their processes sees through PID namespaces.
const STATE: &str = "/run/inner-lab";

/// What somebody has in the environment who calls `lab` with the machine's Slurm set up, or from a job of it. Slurm's
/// own commands would follow most of these, and fail in the inner lab.
pub const CALLER: [(&str, &str); 6] = [
    ("SLURM_CONF", SITE_CONF),
    ("SLURM_CLUSTERS", "cluster-of-the-machine"),
    ("SLURM_PARTITION", "partition-of-the-machine"),
    ("SBATCH_PARTITION", "partition-of-the-machine"),
    ("SLURM_JOB_ID", "100000001"),
    ("CANARY", "canary-of-the-machine"),
];

/// A lab on the machine.
pub struct Inner<'a> {
    machine: &'a Machine,
    pub id: String,
}

/// `lab up` as root on the machine.
pub fn up(machine: &Machine, options: &[&str]) -> NodeCommand {
    lab(machine, &[&["up", "--nodes", "1"], options].concat())
}

fn lab(machine: &Machine, arguments: &[&str]) -> NodeCommand {
    let program = format!("{TEST}/lab");
    let argv = [&[program.as_str()], arguments].concat();
    let command = machine.node().command("root", argv);
    let ours = [
        ("SLURM_SERVE_LAB", STATE),
        ("SLURM_SERVE_CACHE", &format!("{TEST}/cache")),
    ];
    ours.into_iter()
        .chain(CALLER)
        .fold(command, |command, (name, value)| command.env(name, value))
}

impl<'a> Inner<'a> {
    pub fn up(machine: &'a Machine) -> Result<Self> {
        let id = up(machine, &[]).run()?.trim().to_owned();
        Ok(Self { machine, id })
    }

    /// Its state folder on the machine.
    pub fn folder(&self) -> String {
        format!("{STATE}/{}", self.id)
    }

    /// Runs a command on its login node.
    pub fn run(&self, user: &str, argv: &[&str]) -> Result<String> {
        self.exec(user, argv).run()
    }

    /// Starts one there; [`Self::said`] gives what it printed.
    pub fn spawn(&self, user: &str, argv: &[&str]) -> Result<Background> {
        self.exec(user, argv).spawn(log())
    }

    /// What the started one printed so far.
    pub fn said(&self) -> Result<String> {
        self.machine.node().read_text(log())
    }

    fn exec(&self, user: &str, argv: &[&str]) -> NodeCommand {
        let arguments = [&["exec", &self.id, "login", "--user", user, "--"], argv].concat();
        lab(self.machine, &arguments)
    }

    /// Looks at the environment that each process was started with which wasn't there `before` the lab.
    pub fn assert_no_process_has_the_callers_environment(&self, before: &Snapshot) -> Result<()> {
        let known: BTreeSet<_> = before.lines().filter_map(pid).map(str::to_owned).collect();
        let now = self.machine.listing()?;
        let new: Vec<_> = now
            .lines()
            .filter_map(pid)
            .filter(|pid| !known.contains(*pid))
            .collect();
        let environments = self.machine.node().inside(|| {
            let read = |pid: &&str| fs::read(Path::new("/proc").join(pid).join("environ")).ok();
            new.iter().filter_map(read).collect::<Vec<_>>()
        })?;
        // A hub, and on each of three nodes its first process, munged and what a role needs.
        ensure!(
            environments.len() > 8,
            "only {} processes are the lab's",
            environments.len()
        );
        for environment in environments {
            let text = String::from_utf8_lossy(&environment).replace('\0', "\n");
            for (name, value) in CALLER {
                ensure!(
                    !text.contains(&format!("{name}={value}")),
                    "the caller's {name} is in\n{text}"
                );
            }
        }
        Ok(())
    }

    /// Takes it down and looks for its name where every machine would keep it.
    pub fn down(self) -> Result<()> {
        lab(self.machine, &["down", &self.id]).run()?;
        let prefix = format!("{}-", self.id);
        let find = [
            "find",
            "/sys/fs/cgroup",
            "-type",
            "d",
            "-name",
            &format!("*{prefix}*"),
        ];
        let left = self.machine.node().command("root", find).output()?;
        let left = String::from_utf8(left.stdout).context("cgroups with strange names")?;
        ensure!(left.is_empty(), "cgroups of the lab are left:\n{left}");
        Ok(())
    }
}

fn log() -> String {
    format!("{TEST}/inner.log")
}

/// The pid in a listing's line of a process.
fn pid(line: &str) -> Option<&str> {
    line.strip_prefix("process ")?.split(' ').next()
}
