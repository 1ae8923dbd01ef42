//! docs/install.md on a lab whose nodes have nothing but Slurm.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serve_e2e::{Options, has};
use serve_lab::{Lab, LabSpec, Node, On, wait_for};

use crate::page::{Block, blocks};
use crate::{repository, run, stripped};

const SYSTEMCTL: &str = include_str!("systemctl.py");
const PLUGIN: &str = "/usr/local/lib/slurm-serve/spank_serve.so";

struct Cluster {
    lab: Lab,
    /// `slurm-serve-0.1.0.tar.gz`
    archive: String,
}

#[test]
fn the_page_is_followed_word_for_word() {
    let spec = |spec: LabSpec| spec;
    follow(spec, |_| Ok(())).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Nodes have no file in /etc/slurm and get theirs from slurmctld, plugstack.conf too.
#[test]
fn the_page_holds_for_a_configless_slurm() {
    let spec = |spec: LabSpec| spec.setting("SlurmctldParameters", "enable_configless");
    follow(spec, configless).unwrap_or_else(|error| panic!("{error:#}"));
}

fn follow(
    shape: impl FnOnce(LabSpec) -> LabSpec,
    prepare: impl FnOnce(&Cluster) -> Result<()>,
) -> Result<()> {
    let page = std::fs::read_to_string(repository().join("docs/install.md"))?;
    let blocks = blocks(&page)?;
    let bare = LabSpec {
        release: Options::default().release,
        nodes: 1,
        ..LabSpec::default()
    }
    .file(On::All, "/usr/local/bin/systemctl", SYSTEMCTL, 0o755)
    .prepare(|node| {
        let rm = [
            "rm",
            "-r",
            "/etc/slurm/plugstack.conf",
            "/etc/slurm/plugstack.conf.d",
        ];
        node.command("root", rm).run().map(drop)
    });
    let cluster = Cluster {
        lab: Lab::up(shape(bare))?,
        archive: format!("slurm-serve-{}.tar.gz", env!("CARGO_PKG_VERSION")),
    };
    prepare(&cluster)?;
    let mut before = "";
    let mut served = String::new();
    for block in &blocks {
        // What the page can't say in commands, before the first block of its chapter.
        if block.place != before {
            match block.place.as_str() {
                "upgrade" => served = cluster.serve()?,
                "restamp" => cluster.forget_the_stamp()?,
                "uninstall" => cluster.upgraded(&served)?,
                _ => {}
            }
        }
        before = &block.place;
        cluster
            .run(block)
            .with_context(|| format!("docs/install.md:{}", block.line))?;
    }
    cluster.is_clean()?;
    cluster.lab.down()
}

impl Cluster {
    fn run(&self, block: &Block) -> Result<()> {
        let (login, compute) = (self.lab.login(), self.lab.compute());
        let (user, nodes): (_, Vec<&Node>) = match block.place.as_str() {
            "build" => return self.archive(block),
            "all" | "upgrade" | "restamp" | "uninstall" => ("root", compute.iter().chain([login]).collect()),
            "compute" | "upgrade-compute" => ("root", compute.iter().collect()),
            "login" => ("root", vec![login]),
            "user" | "uninstall-user" => ("alice", vec![login]),
            other => anyhow::bail!("nobody knows where {other:?} is"),
        };
        for node in nodes {
            // The page's way for a configless Slurm: on slurmctld's host, and handed out.
            let configless =
                block.text.contains("plugstack.conf.new") && node.read("/etc/slurm/slurm.conf").is_err();
            let at = if configless { self.lab.controller() } else { node };
            if configless && at.read("/etc/slurm/plugstack.conf").is_ok() {
                continue;
            }
            at.command(user, ["bash", "-e", "-c", &block.text])
                .limit(Duration::from_secs(120))
                .run()
                .with_context(|| self.logs(node))?;
            if configless {
                at.command("root", ["scontrol", "reconfigure"]).run()?;
            }
        }
        Ok(())
    }

    /// The archive is made on this machine and copied to the shared /home, which the page leaves to the reader.
    fn archive(&self, block: &Block) -> Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _mine = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (built, repository) = (stripped()?, repository());
        let mut command = Command::new("bash");
        command.args(["-e", "-c", &block.text]).current_dir(&repository);
        // The programs are built already, for this very test.
        command
            .env("CARGO", "true")
            .env("BUILT", built.path())
            // Under `make test` this would be a make within a make, which tells the folders that it enters.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL");
        let said = run(&mut command)?;
        ensure!(said.lines().last() == Some(&self.archive), "{said}");
        let archive = std::fs::read(repository.join(&self.archive))?;
        let to = format!("/home/{}", self.archive);
        self.lab.login().install_file(to, archive, 0o644)
    }

    /// A job with a model that is served when this returns; its generation.
    fn serve(&self) -> Result<String> {
        let login = self.lab.login();
        let submit = [
            "sbatch",
            "--parsable",
            "--serve-model=selftest",
            "--wrap",
            "sleep 600",
        ];
        let id = login.command("alice", submit).run()?.trim().to_owned();
        login
            .command("alice", ["sserve", "wait", "--timeout", "60s", &id])
            .run()?;
        self.generation()
    }

    fn generation(&self) -> Result<String> {
        let list = self
            .lab
            .login()
            .command("alice", ["sserve", "list", "--json"])
            .run()?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        let model = &list["models"][0];
        ensure!(model["state"] == "ready", "{list}");
        Ok(format!("{} {}", model["job_id"], model["generation"]))
    }

    /// As after an upgrade of Slurm's packages: the plugin is of another release.
    fn forget_the_stamp(&self) -> Result<()> {
        let login = self.lab.login();
        login
            .command(
                "root",
                ["sserve", "plugin", "stamp", PLUGIN, "--slurm", "23.02.1"],
            )
            .run()?;
        let tagged = login
            .command("alice", ["sbatch", "--serve-model=selftest", "--wrap", "true"])
            .output()?;
        has(&String::from_utf8_lossy(&tagged.stderr), &["unrecognized option"])?;
        login.command("alice", ["srun", "true"]).run().map(drop)
    }

    /// The model of before the upgrade goes on, in the new agent's hands.
    fn upgraded(&self, served: &str) -> Result<()> {
        let now = wait_for(Duration::from_secs(20), "the model in the list", || {
            Ok(self.generation().ok())
        })?;
        ensure!(now == *served, "{now} is not {served}");
        Ok(())
    }

    /// After the uninstall: no line, no program, and the nodes as they were.
    fn is_clean(&self) -> Result<()> {
        self.lab
            .controller()
            .command("root", ["scancel", "--state=RUNNING"])
            .run()?;
        self.no_jobs()?;
        for node in self.lab.compute().iter().chain([self.lab.login()]) {
            let stack = node
                .command(
                    "root",
                    ["sh", "-c", "cat /etc/slurm/plugstack.conf.d/* 2>/dev/null; true"],
                )
                .run()?;
            ensure!(stack.is_empty(), "{}: {stack}", node.name());
            let left: Vec<_> = node
                .processes()?
                .into_iter()
                .filter(|it| it.command.contains("slurm-serve"))
                .collect();
            ensure!(left.is_empty(), "{}: {left:?}", node.name());
        }
        let node = &self.lab.compute()[0];
        // slurmd, not yet restarted, and then restarted.
        for _ in 0..2 {
            let out = self.lab.login().command("alice", ["srun", "hostname"]).run()?;
            ensure!(out.trim() == node.name(), "{out}");
            // In the middle of a job's end slurmctld would take a minute to ask the new one.
            self.no_jobs()?;
            node.command("root", ["systemctl", "restart", "slurmd"]).run()?;
        }
        let state = ["sinfo", "-h", "-n", node.name(), "-o", "%T"];
        let state = self.lab.controller().command("root", state).run()?;
        ensure!(
            !state.contains("drain") && !state.contains("down"),
            "the node is {state}"
        );
        Ok(())
    }

    fn no_jobs(&self) -> Result<()> {
        wait_for(Duration::from_secs(60), "all jobs to end", || {
            let queue = self.lab.login().command("root", ["squeue", "-h"]).run()?;
            Ok(queue.trim().is_empty().then_some(()))
        })
    }

    fn logs(&self, node: &Node) -> String {
        let tail = |path: &str| format!("--- {path} of {}:\n{}", node.name(), node.tail(path, 20));
        [
            "/var/log/slurm-serve-agent.log",
            "/var/log/slurm-serve-gateway.log",
            "/var/log/slurm/slurmd.log",
        ]
        .map(tail)
        .join("\n")
    }
}

/// Takes slurm.conf and the rest from the compute node and the login node: slurmd asks slurmctld, and so do commands.
fn configless(cluster: &Cluster) -> Result<()> {
    let controller = cluster.lab.controller().name().to_owned();
    for node in cluster.lab.compute() {
        node.command("root", ["sh", "-c", "rm -rf /etc/slurm/*.conf"])
            .run()?;
        node.install_file(
            "/etc/default/slurmd",
            format!("SLURMD_OPTIONS='--conf-server {controller}'\n"),
            0o644,
        )?;
        node.command("root", ["systemctl", "restart", "slurmd"]).run()?;
        wait_for(Duration::from_secs(30), "a configless slurmd to answer", || {
            Ok(node
                .command("root", ["scontrol", "show", "node", node.name()])
                .run()
                .ok())
        })?;
    }
    Ok(())
}
