//! The machine: a node on which a whole Slurm runs.

use std::time::Duration;

use anyhow::{Context, Result};
use serve_lab::{Cache, Lab, LabSpec, Node, On, Role, Snapshot, ensure_root, wait_for};

use crate::listing;

/// How long anything on it may take.
pub const SOON: Duration = Duration::from_secs(20);

/// What the test itself puts on the machine: the `lab` command, the cache, a log. Not listed.
pub const TEST: &str = "/opt/beside";

/// A second name of the machine's slurm.conf, of which the inner lab has no like: whoever is led there sees nothing.
pub const SITE_CONF: &str = "/etc/slurm/site.conf";

const SLURM_CONF: &str = "/etc/slurm/slurm.conf";

/// The controller node of an outer lab, with slurmd on it too.
pub struct Machine {
    lab: Lab,
}

impl Machine {
    /// Brings it up; slurmctld, slurmd and munged run on it.
    pub fn up() -> Result<Self> {
        let mut spec = LabSpec {
            nodes: 1,
            gpus: 0,
            ..LabSpec::default()
        };
        let root = ensure_root(&Cache::locate()?, spec.release)?;
        let cached = root.file_name().context("the cached root has no name")?;
        let machine = On::Node("ctl".into());
        spec = spec
            .bind(machine.clone(), format!("{TEST}/lab"), env!("CARGO_BIN_EXE_lab"))
            .bind(machine, format!("{TEST}/cache/{}", cached.display()), &root)
            .prepare(|node| {
                let mut text = node.read_text(SLURM_CONF)?;
                let controller = text.lines().find_map(|line| line.strip_prefix("SlurmctldHost="));
                let controller = controller.context("slurm.conf names no controller")?;
                text += &format!("NodeName={controller} CPUs=8 RealMemory=16000 State=UNKNOWN\n");
                node.install_file(SLURM_CONF, &text, 0o644)?;
                match node.role() {
                    Role::Controller => node.install_file(SITE_CONF, &text, 0o644),
                    _ => Ok(()),
                }
            });
        let machine = Self { lab: Lab::up(spec)? };
        let node = machine.node();
        node.command("root", ["/usr/sbin/slurmd"]).run()?;
        wait_for(SOON, "the machine's slurmd to be idle", || {
            let state = node
                .command("root", ["sinfo", "-h", "-n", node.name(), "-o", "%T"])
                .run()?;
            Ok((state.trim() == "idle").then_some(()))
        })
        .with_context(|| node.tail("/var/log/slurm/slurmd.log", 10))?;
        Ok(machine)
    }

    /// The node.
    pub fn node(&self) -> &Node {
        self.lab.controller()
    }

    /// Starts a long job of alice's on it and waits until its script runs; gives its number.
    pub fn start_job(&self) -> Result<String> {
        let script = "touch works; exec sleep 600";
        let submit = ["sbatch", "--parsable", "-w", self.node().name(), "--wrap", script];
        let job = self.node().command("alice", submit).run()?;
        wait_for(SOON, "the machine's job to run", || {
            Ok(self.node().read("/home/alice/works").is_ok().then_some(()))
        })?;
        Ok(job.trim().into())
    }

    /// Runs a command there as a job of alice's, for as long as it takes.
    pub fn srun(&self, argv: &[&str]) -> Result<String> {
        let argv = [&["srun", "-w", self.node().name()], argv].concat();
        self.node().command("alice", argv).run()
    }

    /// Number and state of each job in the machine's queue.
    pub fn queue(&self) -> Result<String> {
        self.node()
            .command("alice", ["squeue", "-h", "-o", "%i %T"])
            .run()
    }

    /// What there is on it now.
    pub fn listing(&self) -> Result<Snapshot> {
        listing::of(self.node())
    }

    /// The listing once it stays the same: what the last command started has ended.
    pub fn settled(&self) -> Result<Snapshot> {
        let mut last = self.listing()?;
        wait_for(SOON, "the machine to settle", || {
            let now = self.listing()?;
            let same = now == last;
            last = now;
            Ok(same.then(|| last.clone()))
        })
    }

    /// Waits until it is as it was.
    pub fn assert_as(&self, before: &Snapshot) -> Result<()> {
        let mut difference = String::new();
        wait_for(SOON, "the machine to be as before", || {
            difference = before.difference(&self.listing()?).to_string();
            Ok(difference.is_empty().then_some(()))
        })
        .with_context(|| format!("the lab changed the machine:\n{difference}"))
    }

    /// Takes it down.
    pub fn down(self) -> Result<()> {
        self.lab.down()
    }
}
