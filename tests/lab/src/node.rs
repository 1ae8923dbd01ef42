//! One node of a lab.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::birth;
use crate::cgroup;
use crate::command::NodeCommand;
use crate::daemons;
use crate::network;
use crate::process::{Join, ProcessId};
use crate::running::{self, Running};
use crate::snapshot::Snapshot;
use crate::state::{NodeState, Role};
use crate::wait::wait_for;

/// A node of a running lab. Clones are the same node.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    state: NodeState,
    init: ProcessId,
    hub: ProcessId,
    /// Children of this process that run in the node: they must be waited for before the node can be gone.
    children: Mutex<Vec<Arc<Mutex<Child>>>>,
}

impl Node {
    /// A node whose first process runs.
    pub(crate) fn new(state: NodeState, hub: ProcessId) -> Result<Self> {
        let init = state
            .init
            .with_context(|| format!("{} never started", state.name))?;
        Ok(Self {
            inner: Arc::new(Inner {
                state,
                init,
                hub,
                children: Mutex::default(),
            }),
        })
    }

    /// Its host name, which is Slurm's name of it.
    pub fn name(&self) -> &str {
        &self.inner.state.name
    }

    /// Its name without the lab's id: `ctl`, `login`, `n1`.
    pub fn short(&self) -> &str {
        &self.inner.state.short
    }

    /// Its IPv4 address in the lab.
    pub fn address(&self) -> &str {
        &self.inner.state.address
    }

    /// What it is for.
    pub fn role(&self) -> Role {
        self.inner.state.role
    }

    /// Its first process.
    pub fn init(&self) -> ProcessId {
        self.inner.init
    }

    /// A command to be run here as `user` (root, alice, bob, slurm, munge).
    pub fn command(&self, user: &str, argv: impl IntoIterator<Item = impl Into<OsString>>) -> NodeCommand {
        NodeCommand::new(self.clone(), user, argv)
    }

    /// Runs code of this process in the node: as root, with the node's files, network and host name. Sockets and
    /// files opened there work on outside.
    ///
    /// It runs on a thread of its own. `/proc` shows the node's processes, but there is no `/proc/self`.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        self.inner
            .init
            .inside(Join::Here, body)
            .with_context(|| format!("can't enter {}", self.name()))
    }

    /// Puts a file of root's in place, by rename; missing folders are made.
    pub fn install_file(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let (path, bytes) = (path.as_ref(), bytes.as_ref());
        self.inside(|| birth::write(path, bytes, mode))?
            .with_context(|| format!("on {}", self.name()))
    }

    /// Reads a file, as root.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.inside(|| fs::read(path))?
            .with_context(|| format!("can't read {} on {}", path.display(), self.name()))
    }

    /// Reads a text file, as root.
    pub fn read_text(&self, path: impl AsRef<Path>) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.read(path)?).into_owned())
    }

    /// What there is on it now.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::of(self)
    }

    /// Waits until nothing is there that wasn't there at `before`; the error lists what is.
    pub fn wait_until_clean(&self, before: &Snapshot, limit: Duration) -> Result<()> {
        let mut left = String::new();
        wait_for(
            limit,
            &format!("nothing to be left behind on {}", self.name()),
            || {
                let difference = before.difference(&self.snapshot()?);
                left = difference.to_string();
                Ok(difference.appeared.is_empty().then_some(()))
            },
        )
        .with_context(|| format!("left behind on {}:\n{left}", self.name()))
    }

    /// Pulls its network cable.
    pub fn cut(&self) -> Result<()> {
        network::plug(self.inner.hub, self.short(), false)
    }

    /// Plugs it in again, as fast as it was.
    pub fn restore(&self) -> Result<()> {
        network::unslow(self.inner.hub, self.inner.init, self.short())?;
        network::plug(self.inner.hub, self.short(), true)
    }

    /// Makes its network slow, both ways, until [`Node::restore`].
    pub fn slow(&self) -> Result<()> {
        network::slow(self.inner.hub, self.inner.init, self.short())
    }

    /// Pulls its cable and kills all that runs on it, without its first process: what a power cut looks like from elsewhere.
    pub fn power_cut(&self) -> Result<()> {
        self.cut()?;
        cgroup::thaw_node(self.name());
        wait_for(Duration::from_secs(10), "all processes to be dead", || {
            for running in self.processes()?.iter().filter(|running| !is_keeper(running)) {
                running.process.signal(Signal::SIGKILL)?;
            }
            // What this process started is a zombie until it is asked for.
            self.reap();
            let dead = |running: &Running| running.state == 'Z' || is_keeper(running);
            Ok(self.processes()?.iter().all(dead).then_some(()))
        })
    }

    /// After [`Node::power_cut`]: memory is empty (/run, /tmp, /dev/shm, cgroups), the disk as it was, munged and slurmd start.
    pub fn boot(&self) -> Result<()> {
        const MEMORY: &str = "find /tmp /dev/shm /run/slurm-serve /run/munge -mindepth 1 -delete";
        self.command("root", ["sh", "-c", MEMORY]).run()?;
        cgroup::remove_node(self.name())?;
        self.restore()?;
        daemons::munged(self)?;
        daemons::boot_slurmd(self)?;
        // From here on as before: every start with `-b` would be another boot.
        self.restart_slurmd()
    }

    /// Stops every process on it (SIGSTOP), as a hung node.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::SIGSTOP)
    }

    /// Lets them run again.
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::SIGCONT)
    }

    /// Kills the node with all its processes, as a power cut. It doesn't come back.
    pub fn kill(&self) -> Result<()> {
        self.inner.init.signal(Signal::SIGKILL)?;
        self.reap();
        self.inner.init.wait_gone(Duration::from_secs(10))
    }

    /// Restarts slurmd (as after an installation) and waits until the node is idle or at work again.
    pub fn restart_slurmd(&self) -> Result<()> {
        daemons::restart_slurmd(self)
    }

    /// Stops slurmctld (its state stays) and waits for its end.
    pub fn stop_slurmctld(&self) -> Result<()> {
        daemons::stop(self, "slurmctld")
    }

    /// Starts slurmctld and waits until it listens; that it runs already is no error.
    pub fn start_slurmctld(&self) -> Result<()> {
        if daemons::is_running(self, "slurmctld")? {
            return Ok(());
        }
        daemons::slurmctld(self)
    }

    /// The end of a log file, for messages: at most `lines` lines; why it can't be read, if it can't.
    pub fn tail(&self, path: &str, lines: usize) -> String {
        match self.read_text(path) {
            Ok(text) => {
                let all: Vec<_> = text.lines().collect();
                all[all.len().saturating_sub(lines)..].join("\n")
            }
            Err(error) => format!("({error:#})"),
        }
    }

    /// What runs on it, without its first process.
    pub fn processes(&self) -> Result<Vec<Running>> {
        running::with(self.inner.init).with_context(|| format!("can't look at {}", self.name()))
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        // Twice: one may have forked between the listing and its signal.
        for _ in 0..2 {
            for running in self.processes()? {
                running.process.signal(signal)?;
            }
        }
        Ok(())
    }

    pub(crate) fn remember(&self, child: Arc<Mutex<Child>>) {
        self.inner
            .children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(child);
    }

    /// Waits for this process's children in a node that has been killed: the kernel keeps the PID namespace until
    /// the last one's parent has taken notice.
    pub(crate) fn reap(&self) {
        for child in self
            .inner
            .children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            // It has been sent SIGKILL with its node, if it hadn't ended before.
            let _ = child.wait();
        }
    }
}

/// The child that the first process of a node waits for: the namespaces end with it.
fn is_keeper(running: &Running) -> bool {
    running.uid == 0 && running.command == "sleep infinity"
}
