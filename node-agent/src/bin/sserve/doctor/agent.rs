//! The agent: of this node, or, from a login node, of all of them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use slurm_serve::config;
use slurm_serve_proto::v1::ListModelsResponse;

use super::finding::Findings;
use super::host::{Host, Role, program};
use crate::agent::{Agent, Trouble};
use crate::find::Agents;

const CHECK: &str = "agent";
const FOLDER: &str = "socket";
const TCP: &str = "agent over TCP";
/// A start of the agent answers lists only once the runners are back.
const MARGIN: Duration = Duration::from_secs(2);

/// Looks at the socket, asks the agent over it, then over TCP.
pub async fn look(host: &Host, found: &mut Findings) {
    if host.role == Role::Login {
        return everybody(host, found).await;
    }
    let socket = &host.config.agent.socket;
    folder(socket, found);
    if !process(socket, found) {
        return;
    }
    let limit = host.config.agent.recover_timeout + MARGIN;
    let agent = match Agent::local(&host.node, socket, limit) {
        Ok(agent) => agent,
        Err(error) => return found.fail(CHECK, error.to_string(), "correct agent.socket"),
    };
    match agent.models(false).await {
        Ok(answer) => answered(host, &answer, found),
        Err(trouble) => {
            return found.fail(
                CHECK,
                said(trouble),
                "systemctl restart slurm-serve-agent; models go on; its log says more (journalctl -u slurm-serve-agent)",
            );
        }
    }
    over_tcp(host, limit, found).await;
}

fn said(trouble: Trouble) -> String {
    match trouble {
        Trouble::NotFound => "it knows nothing of the question".into(),
        Trouble::Refused(why) | Trouble::Silent(why) => why,
    }
}

fn answered(host: &Host, answer: &ListModelsResponse, found: &mut Findings) {
    let ours = env!("CARGO_PKG_VERSION");
    let version = match answer.agent_version.as_str() {
        "" => "one that tells no version",
        version => version,
    };
    match version == ours {
        true => found.ok(
            CHECK,
            format!(
                "answers: slurm-serve {version}, {} models now",
                answer.models.len()
            ),
        ),
        false => found.warn(
            CHECK,
            format!("runs slurm-serve {version}, and this sserve is {ours}"),
            "systemctl restart slurm-serve-agent (models go on), or install both from one build",
        ),
    }
    if answer.node != host.node {
        found.fail(
            CHECK,
            format!(
                "it takes itself for the node {:?}, and this one is {:?}",
                answer.node, host.node
            ),
            "set agent.node_name to Slurm's NodeName of this node",
        );
    }
}

/// Whoever may replace the socket could answer in the agent's place.
fn folder(socket: &Path, found: &mut Findings) {
    let Some(folder) = socket.parent() else { return };
    let shown = folder.display();
    let about = match folder.metadata() {
        Ok(about) => about,
        Err(error) => {
            return found.fail(
                FOLDER,
                format!("{shown}: {error}"),
                "systemctl start slurm-serve-agent makes it",
            );
        }
    };
    let mode = about.permissions().mode() & 0o7777;
    let open = mode & 0o005 == 0o005;
    if about.uid() != 0 || mode & 0o022 != 0 {
        found.fail(
            FOLDER,
            format!(
                "{shown} belongs to uid {} with mode {mode:o}: others may put a socket of theirs there",
                about.uid()
            ),
            format!("chown root:root {shown} && chmod 755 {shown}"),
        );
    } else if !open {
        found.fail(
            FOLDER,
            format!("{shown} has mode {mode:o}: jobs can't reach the agent, they run as users"),
            format!("chmod 755 {shown}"),
        );
    } else {
        found.ok(FOLDER, format!("{shown} is root's, and users may enter"));
    }
    if let Ok(about) = socket.metadata()
        && about.permissions().mode() & 0o006 != 0o006
    {
        found.fail(
            FOLDER,
            format!(
                "{} can't be used by users (mode {:o})",
                socket.display(),
                about.permissions().mode() & 0o777
            ),
            format!("chmod 666 {}", socket.display()),
        );
    }
}

/// Who serves the socket. False: nobody.
fn process(socket: &Path, found: &mut Findings) -> bool {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => {
            found.fail(
                CHECK,
                format!("nobody listens at {}: {error}", socket.display()),
                "systemctl start slurm-serve-agent; jobs with --serve-model wait for it, then fail",
            );
            return false;
        }
    };
    let Ok(peer) = getsockopt(&stream, PeerCredentials) else {
        return true;
    };
    if peer.uid() != 0 {
        found.fail(
            CHECK,
            format!(
                "pid {} of uid {} serves {}, not root",
                peer.pid(),
                peer.uid(),
                socket.display()
            ),
            "end it, and start the agent by systemctl start slurm-serve-agent",
        );
    }
    match program(peer.pid()) {
        Some((file, true)) => found.warn(
            CHECK,
            format!(
                "pid {} still runs the {} of before an upgrade",
                peer.pid(),
                file.display()
            ),
            "systemctl restart slurm-serve-agent; models go on",
        ),
        Some((file, false)) => found.ok(CHECK, format!("pid {} runs {}", peer.pid(), file.display())),
        None => found.ok(CHECK, format!("pid {} listens", peer.pid())),
    }
    true
}

/// As the gateway and other nodes reach it: port, munge, roles.
async fn over_tcp(host: &Host, limit: Duration, found: &mut Findings) {
    let listen = host.config.agent.listen.as_str();
    let Some((_, port)) = listen.rsplit_once(':') else {
        return found.skip(
            TCP,
            "agent.listen is empty: gateway and login nodes do not reach this agent",
        );
    };
    let address = match host.field("NodeAddr") {
        Some(address) if address.contains(':') => format!("[{address}]:{port}"),
        Some(address) => format!("{address}:{port}"),
        None => format!("127.0.0.1:{port}"),
    };
    let connect = host.config.gateway.connect_timeout;
    let client = config::Client {
        timeout: limit,
        ..host.config.client.clone()
    };
    let asked = match Agent::remote(&host.node, &address, connect, &client) {
        Ok(agent) => agent.models(false).await.map_err(said),
        Err(error) => Err(error.to_string()),
    };
    match asked {
        Ok(_) => found.ok(TCP, format!("{address} answers, proven by munge")),
        Err(why) => found.fail(
            TCP,
            format!("{address}: {why}"),
            "see that munged runs, that NodeAddr is this node's, that agent.listen is not taken; else nobody else finds models here",
        ),
    }
    if host.config.gateway.agent_port.to_string() != port {
        found.warn(
            TCP,
            format!(
                "agent.listen has port {port}, gateway.agent_port is {}",
                host.config.gateway.agent_port
            ),
            "write the same port on all nodes",
        );
    }
}

/// From a login node: all that Slurm names.
async fn everybody(host: &Host, found: &mut Findings) {
    let all = match Agents::new(host.config.clone()).all().await {
        Ok(all) => all,
        Err(failure) => return found.fail("agents", failure.line, "see docs/install.md"),
    };
    let answers = Agents::ask(&all, |agent| async move { agent.models(false).await }).await;
    let ours = env!("CARGO_PKG_VERSION");
    let (mut good, mut silent, mut other) = (0, Vec::new(), Vec::new());
    for (agent, answer) in all.iter().zip(answers) {
        match answer {
            Ok(answer) if answer.agent_version == ours => good += 1,
            Ok(answer) => other.push(format!("{} ({})", agent.node(), answer.agent_version)),
            Err(trouble) => silent.push(said(trouble)),
        }
    }
    match silent.as_slice() {
        [] => found.ok("agents", format!("all {} answer", all.len())),
        [first, ..] => {
            let text = format!("{} of {} do not answer: {first}", silent.len(), all.len());
            let todo = "run `sserve doctor` there";
            match good + other.len() {
                0 => found.fail("agents", text, todo),
                _ => found.warn("agents", text, todo),
            }
        }
    }
    if let Some(first) = other.first() {
        found.warn(
            "agents",
            format!(
                "{} are of another version than this sserve ({ours}): {first}",
                other.len()
            ),
            "upgrade them, or this node; what they say to each other stays compatible within 0.1",
        );
    }
}
