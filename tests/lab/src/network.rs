//! The lab's network: a bridge in the hub's namespace, one veth pair per node. No interface is ever on the machine's
//! side, and nothing leads out of the hub.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{Join, ProcessId};
use crate::state::{NodeState, Role};

/// The address of the n-th compute node (from 1), the controller or the login node. Labs don't see each other, so
/// all use the same ones.
pub(crate) fn address(role: Role, number: u16) -> String {
    let [_, low] = number.to_be_bytes();
    let last = match role {
        Role::Controller => 1,
        Role::Login => 2,
        Role::Compute => 10 + low,
    };
    Ipv4Addr::new(10, 98, 0, last).to_string()
}

/// Makes the bridge and plugs every node in. All nodes' first processes run.
pub(crate) fn connect(hub: ProcessId, nodes: &[NodeState]) -> Result<()> {
    let bridge = ["link set lo up", "link add br0 type bridge", "link set br0 up"];
    ip(hub, &bridge.join("\n")).context("can't make the lab's bridge")?;
    let plug_in = |node: &NodeState| -> Result<()> {
        let init = node.init.context("no first process")?;
        let port = port(&node.short);
        // The node's namespace is handed over as stdin: inside the hub no process of the node can be named.
        let space =
            File::open(format!("/proc/{}/ns/net", init.pid)).context("can't open its network namespace")?;
        let pair = format!("link add {port} type veth peer name eth0 netns /proc/self/fd/0");
        let words: Vec<_> = pair.split(' ').collect();
        run_ip(hub, &words, space.into())?;
        ip(hub, &format!("link set {port} master br0 up"))?;
        ip(
            init,
            &format!(
                "addr add {}/24 dev eth0\nlink set eth0 up\nlink set lo up",
                node.address
            ),
        )
    };
    nodes
        .iter()
        .try_for_each(|node| plug_in(node).with_context(|| format!("can't connect {}", node.name)))
}

/// Pulls a node's cable or plugs it in again.
pub(crate) fn plug(hub: ProcessId, short: &str, in_: bool) -> Result<()> {
    let state = if in_ { "up" } else { "down" };
    ip(hub, &format!("link set {} {state}\n", port(short)))
}

/// How slow a slow cable is.
const SLOW: &str = "tbf rate 512kbit burst 4kb latency 300ms";

/// Makes a node's cable slow in both directions.
pub(crate) fn slow(hub: ProcessId, node: ProcessId, short: &str) -> Result<()> {
    tc(hub, &format!("qdisc replace dev {} root {SLOW}", port(short)))?;
    tc(node, &format!("qdisc replace dev eth0 root {SLOW}")).map(drop)
}

/// Makes it as fast as ever; that it was is no error.
pub(crate) fn unslow(hub: ProcessId, node: ProcessId, short: &str) -> Result<()> {
    for (process, device) in [(hub, port(short)), (node, "eth0".to_owned())] {
        let shown = tc(process, &format!("qdisc show dev {device}"))?;
        if shown.contains("tbf") {
            tc(process, &format!("qdisc delete dev {device} root"))?;
        }
    }
    Ok(())
}

/// The hub's end of a node's cable.
fn port(short: &str) -> String {
    format!("v-{short}")
}

/// Runs lines of commands by `ip`.
fn ip(process: ProcessId, script: &str) -> Result<()> {
    let (reader, mut writer) = std::io::pipe().context("can't make a pipe")?;
    // It fits the pipe's buffer, so writing it first can't block.
    writer
        .write_all(format!("{script}\n").as_bytes())
        .context("can't tell ip what to do")?;
    drop(writer);
    run_ip(process, &["-batch", "-"], reader.into())
}

/// Runs the root file system's own `ip` in the namespaces of a process.
fn run_ip(process: ProcessId, words: &[&str], stdin: Stdio) -> Result<()> {
    run(process, "ip", words, stdin).map(drop)
}

/// Runs its `tc`; gives what it prints.
fn tc(process: ProcessId, command: &str) -> Result<String> {
    let words: Vec<_> = command.split(' ').collect();
    run(process, "tc", &words, Stdio::null())
}

fn run(process: ProcessId, program: &str, words: &[&str], stdin: Stdio) -> Result<String> {
    process.inside(Join::Children, || {
        let output = Command::new(format!("/usr/sbin/{program}"))
            .args(words)
            .stdin(stdin)
            .env_clear()
            .output()
            .with_context(|| format!("can't run {program}"))?;
        if !output.status.success() {
            bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })?
}
