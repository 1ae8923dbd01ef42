//! The agents of a site: started, signalled, and put right again after a test that let one suffer.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serve_lab::{Background, Node, NodeCommand, wait_for};

use crate::site::{Site, lock};

/// Where an agent logs in its node.
const AGENT_LOG: &str = "/var/log/slurm-serve-agent.log";
/// What tells Slurm of the plugin.
const PLUGSTACK: &str = "/etc/slurm/plugstack.conf.d/serve.conf";

/// What was started, and what was changed for a test.
#[derive(Default)]
pub(crate) struct Agents {
    started: Mutex<Vec<(String, Background)>>,
    /// Nodes whose plugstack file is another than was installed, with that one's text.
    plugstacks: Mutex<Vec<(Node, String)>>,
}

impl Site {
    /// Starts a node's agent and waits until it answers.
    pub fn start_agent(&self, node: &Node) -> Result<()> {
        self.start_agent_as(node, node.command("root", ["slurm-serve", "agent"]))
    }

    /// The same with a command of one's own: another program, another environment.
    pub(crate) fn start_agent_as(&self, node: &Node, command: NodeCommand) -> Result<()> {
        let agent = command
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
        lock(&self.agents.started).push((node.name().to_owned(), agent));
        Ok(())
    }

    /// Sends a signal to the agent of a node.
    pub fn signal_agent(&self, node: &Node, signal: Signal) -> Result<()> {
        self.with_agent(node, |agent| agent.signal(signal))
    }

    /// Ends the agent of a node by a signal, and waits until it is gone.
    pub fn end_agent(&self, node: &Node, signal: Signal) -> Result<()> {
        self.with_agent(node, |agent| {
            agent.signal(signal)?;
            agent.wait(Duration::from_secs(10)).map(drop)
        })
    }

    /// The agent that was started last on a node.
    fn with_agent<T>(&self, node: &Node, work: impl FnOnce(&Background) -> Result<T>) -> Result<T> {
        let agents = lock(&self.agents.started);
        let found = agents.iter().rev().find(|(name, _)| name == node.name());
        let (_, agent) = found.with_context(|| format!("no agent was started on {}", node.name()))?;
        work(agent)
    }

    /// What a node's agent has logged, the last lines.
    pub fn agent_log(&self, node: &Node) -> String {
        node.tail(AGENT_LOG, 25)
    }

    /// Everything that a node's agents have logged.
    pub fn whole_agent_log(&self, node: &Node) -> Result<String> {
        node.read_text(AGENT_LOG)
    }

    /// How long tagged jobs on a node wait for an agent that doesn't answer, until [`Site::repair`].
    pub fn set_agent_wait(&self, node: &Node, seconds: u32) -> Result<()> {
        let installed = node.read_text(PLUGSTACK)?;
        let changed = format!("{} agent_wait={seconds}\n", installed.trim_end());
        node.install_file(PLUGSTACK, changed, 0o644)?;
        lock(&self.agents.plugstacks).push((node.clone(), installed));
        Ok(())
    }

    /// Puts back what a test may have changed: every node is reachable and awake, slurmctld and the gateway run, each compute node has an
    /// agent that answers, and the plugin its first arguments.
    pub fn repair(&self) -> Result<()> {
        for node in self.lab.nodes() {
            node.restore()?;
        }
        for node in self.lab.compute() {
            node.thaw()?;
        }
        self.lab.controller().start_slurmctld()?;
        self.repair_gateway()?;
        for (node, installed) in lock(&self.agents.plugstacks).drain(..).rev() {
            node.install_file(PLUGSTACK, installed, 0o644)?;
        }
        for node in self.lab.compute() {
            if self.with_agent(node, Background::is_running)? {
                self.signal_agent(node, Signal::SIGCONT)?;
            } else {
                self.start_agent(node)?;
            }
        }
        Ok(())
    }
}
