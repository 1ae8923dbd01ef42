//! munged, slurmctld and slurmd: started as a site's units would, default paths and ports, and waited for.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::command::settings_of;
use crate::node::Node;
use crate::wait::wait_for;

const SLURMCTLD_LOG: &str = "/var/log/slurm/slurmctld.log";
const SLURMD_LOG: &str = "/var/log/slurm/slurmd.log";

/// Starts munged and waits for its socket.
pub(crate) fn munged(node: &Node) -> Result<()> {
    node.command("munge", ["/usr/sbin/munged"]).run()?;
    wait_for(Duration::from_secs(10), "munged's socket", || {
        node.inside(|| {
            std::os::unix::net::UnixStream::connect("/run/munge/munge.socket.2")
                .ok()
                .map(drop)
        })
    })
    .with_context(|| {
        format!(
            "on {}: {}",
            node.name(),
            node.tail("/var/log/munge/munged.log", 5)
        )
    })
}

/// Starts slurmctld and waits until it listens.
pub(crate) fn slurmctld(node: &Node) -> Result<()> {
    node.command("root", ["/usr/sbin/slurmctld"]).run()?;
    let address = format!("{}:6817", node.address());
    wait_for(Duration::from_secs(20), "slurmctld to listen", || {
        node.inside(|| std::net::TcpStream::connect(&address).ok().map(drop))
    })
    .with_context(|| format!("{SLURMCTLD_LOG} ends:\n{}", node.tail(SLURMCTLD_LOG, 15)))
}

/// Starts slurmd, with SLURMD_OPTIONS of /etc/default/slurmd as Debian's unit does.
pub(crate) fn slurmd(node: &Node) -> Result<()> {
    slurmd_with(node, &[])
}

/// Starts slurmd after a boot, which it tells slurmctld (`-b`: the machine itself has not booted), and waits until the node is up.
pub(crate) fn boot_slurmd(node: &Node) -> Result<()> {
    slurmd_with(node, &["-b"])?;
    nodes_up(node, node.name(), std::slice::from_ref(node))
}

fn slurmd_with(node: &Node, more: &[&str]) -> Result<()> {
    let settings = node.inside(|| settings_of("/etc/default/slurmd"))?;
    let options = settings
        .into_iter()
        .filter(|(name, _)| name == "SLURMD_OPTIONS")
        .map(|(_, options)| options);
    let options = options.collect::<Vec<_>>().join(" ");
    let argv = std::iter::once("/usr/sbin/slurmd")
        .chain(options.split_ascii_whitespace())
        .chain(more.iter().copied());
    node.command("root", argv)
        .run()
        .map(drop)
        .with_context(|| format!("{SLURMD_LOG} ends:\n{}", node.tail(SLURMD_LOG, 15)))
}

/// Waits until all nodes of a host list are up.
pub(crate) fn nodes_up(controller: &Node, list: &str, compute: &[Node]) -> Result<()> {
    let mut seen = String::new();
    let waited = wait_for(Duration::from_secs(60), &format!("{list} to be up"), || {
        // slurmctld may still be reading its state: an error now isn't one later.
        let asked = controller
            .command("root", ["sinfo", "-h", "-n", list, "-N", "-o", "%N %T"])
            .output()?;
        seen = String::from_utf8_lossy(if asked.status.success() {
            &asked.stdout
        } else {
            &asked.stderr
        })
        .into();
        Ok((asked.status.success() && all_up(&seen, compute.len())).then_some(()))
    });
    waited.with_context(|| {
        let logs = compute
            .iter()
            .map(|node| format!("{} {SLURMD_LOG} ends:\n{}", node.name(), node.tail(SLURMD_LOG, 8)));
        format!("sinfo says:\n{}{}", seen, logs.collect::<Vec<_>>().join("\n"))
    })
}

/// Whether `sinfo -N -o "%N %T"` shows that many nodes, each idle or at work. A `*` means "doesn't answer".
fn all_up(text: &str, count: usize) -> bool {
    let up = |line: &str| {
        let state = line.split_ascii_whitespace().nth(1);
        state.is_some_and(|state| matches!(state, "idle" | "mixed" | "allocated" | "completing"))
    };
    // A node is listed once for each partition it is in.
    let lines: std::collections::BTreeSet<_> = text.lines().collect();
    lines.len() == count && lines.into_iter().all(up)
}

/// Whether a daemon runs on a node.
pub(crate) fn is_running(node: &Node, name: &str) -> Result<bool> {
    Ok(node.processes()?.iter().any(|running| running.name == name))
}

/// Stops slurmd or slurmctld and waits for its end; that there is none is no error.
pub(crate) fn stop(node: &Node, name: &str) -> Result<()> {
    let processes = node.processes()?;
    // Children of slurmd, about to become a slurmstepd, bear its name for a moment: the oldest is the daemon.
    let daemon = processes
        .iter()
        .filter(|running| running.name == name)
        .min_by_key(|running| running.process.started);
    let Some(daemon) = daemon else { return Ok(()) };
    daemon.process.signal(Signal::SIGTERM)?;
    let gone = daemon.process.wait_gone(Duration::from_secs(20));
    gone.with_context(|| format!("{name} on {}", node.name()))
}

/// Stops slurmd (its jobs go on) and starts it again.
pub(crate) fn restart_slurmd(node: &Node) -> Result<()> {
    stop(node, "slurmd")?;
    slurmd(node)?;
    let address = format!("{}:6818", node.address());
    wait_for(Duration::from_secs(20), "slurmd to listen", || {
        node.inside(|| std::net::TcpStream::connect(&address).ok().map(drop))
    })
    .with_context(|| {
        format!(
            "{SLURMD_LOG} on {} ends:\n{}",
            node.name(),
            node.tail(SLURMD_LOG, 15)
        )
    })?;
    nodes_up(node, node.name(), std::slice::from_ref(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_means_all_of_them_and_answering() {
        assert!(all_up("a-n1 idle\na-n2 mixed\n", 2));
        assert!(
            all_up("a-n1 idle\na-n1 idle\na-n2 mixed\na-n2 mixed\n", 2),
            "in two partitions"
        );
        assert!(!all_up("a-n1 idle\n", 2));
        assert!(!all_up("a-n1 idle\na-n2 idle*\n", 2));
        assert!(!all_up("a-n1 idle\na-n2 drained\n", 2));
        assert!(!all_up("", 1));
    }
}
