//! What there is on a node, and what has changed: for saying "nothing is left behind" with evidence.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cgroup;
use crate::node::Node;
use crate::running::Running;

/// Folders where things are left behind.
const FOLDERS: [&str; 5] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run/slurm-serve",
    "/var/lib/slurm-serve",
];

/// What there was on a node: processes (user and command line, not pids, so that a restarted daemon is no change),
/// listening sockets, files in the usual places, Slurm's cgroups that hold processes. Each line with how often it was there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeMap<String, usize>,
}

/// What one snapshot has more and less than an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// There now, not before.
    pub appeared: Vec<String>,
    /// There before, not now.
    pub vanished: Vec<String>,
}

impl Snapshot {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let mut lines = node
            .inside(|| -> Result<Vec<String>> {
                let mut lines = listeners()?;
                for folder in FOLDERS {
                    files(Path::new(folder), &mut lines);
                }
                Ok(lines)
            })?
            .with_context(|| format!("can't look at {}", node.name()))?;
        lines.extend(node.processes()?.iter().map(process_line));
        let groups = cgroup::in_use(node.name());
        lines.extend(groups.into_iter().map(|path| format!("cgroup   {path}")));
        Ok(lines.into_iter().collect())
    }

    /// Its lines, sorted, a repeated one as often as it was there.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines
            .iter()
            .flat_map(|(line, count)| std::iter::repeat_n(line.as_str(), *count))
    }

    /// What `later` has more and less than this one.
    pub fn difference(&self, later: &Self) -> Difference {
        Difference {
            appeared: surplus(&later.lines, &self.lines),
            vanished: surplus(&self.lines, &later.lines),
        }
    }

    /// The same without lines that `unwanted` picks.
    pub fn without(&self, unwanted: impl Fn(&str) -> bool) -> Self {
        let lines = self.lines.iter().filter(|(line, _)| !unwanted(line));
        Self {
            lines: lines.map(|(line, count)| (line.clone(), *count)).collect(),
        }
    }
}

impl FromIterator<String> for Snapshot {
    fn from_iter<I: IntoIterator<Item = String>>(all: I) -> Self {
        let mut lines = BTreeMap::new();
        for line in all {
            *lines.entry(line).or_insert(0) += 1;
        }
        Self { lines }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Difference {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.appeared.is_empty() && self.vanished.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.appeared
            .iter()
            .try_for_each(|line| writeln!(f, "+ {line}"))?;
        self.vanished.iter().try_for_each(|line| writeln!(f, "- {line}"))
    }
}

fn surplus(these: &BTreeMap<String, usize>, those: &BTreeMap<String, usize>) -> Vec<String> {
    let more = these.iter().flat_map(|(line, count)| {
        let other = those.get(line).copied().unwrap_or(0);
        std::iter::repeat_n(line.clone(), count.saturating_sub(other))
    });
    more.collect()
}

fn process_line(running: &Running) -> String {
    let shown: String = match running.command.as_str() {
        "" => format!("({}, {})", running.name, running.state),
        command => command.chars().take(200).collect(),
    };
    format!("process  uid {} {shown}", running.uid)
}

/// Listening sockets of the node's network namespace.
fn listeners() -> Result<Vec<String>> {
    // Through process 1: a thread from outside has no /proc/self in here.
    let table = |name: &str| {
        let path = format!("/proc/1/net/{name}");
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            other => other.with_context(|| format!("can't read {path}")),
        }
    };
    let mut lines = Vec::new();
    for name in ["tcp", "tcp6"] {
        lines.extend(
            table(name)?
                .lines()
                .filter_map(tcp_listener)
                .map(|at| format!("listener {name} {at}")),
        );
    }
    lines.extend(
        table("unix")?
            .lines()
            .filter_map(unix_listener)
            .map(|at| format!("listener unix {at}")),
    );
    Ok(lines)
}

/// The address in a line of /proc/net/tcp or tcp6, if it listens (state 0A).
fn tcp_listener(line: &str) -> Option<String> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next()?;
    if fields.nth(1)? != "0A" {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words in the machine's byte order, each printed as a number.
    let words = (0..address.len() / 8)
        .map(|n| u32::from_str_radix(&address[n * 8..n * 8 + 8], 16).map(u32::to_ne_bytes))
        .collect::<Result<Vec<_>, _>>()
        .ok()?;
    match words.as_slice() {
        [word] => Some(format!("{}:{port}", Ipv4Addr::from(*word))),
        [_, _, _, _] => {
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(format!("[{}]:{port}", Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

/// The name in a line of /proc/net/unix, if it listens (__SO_ACCEPTCON) and has one.
fn unix_listener(line: &str) -> Option<String> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    (flags & 0x10000 != 0).then(|| fields.get(7).map(|name| (*name).to_owned()))?
}

fn files(folder: &Path, lines: &mut Vec<String>) {
    // What isn't there or vanishes while we look is not left behind.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let word = match kind {
            kind if kind.is_dir() => "folder",
            kind if kind.is_symlink() => "link",
            kind if kind.is_socket() => "socket",
            kind if kind.is_fifo() => "pipe",
            _ => "file",
        };
        lines.push(format!("{word:8} {}", entry.path().display()));
        if kind.is_dir() {
            files(&entry.path(), lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(lines: &[&str]) -> Snapshot {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn a_difference_counts_repeated_lines() {
        let before = snapshot(&["process sleep", "file /tmp/a"]);
        let after = snapshot(&["process sleep", "process sleep", "file /tmp/b"]);
        let difference = before.difference(&after);
        assert_eq!(
            difference.to_string(),
            "+ file /tmp/b\n+ process sleep\n- file /tmp/a\n"
        );
        assert!(before.difference(&before).is_empty());
    }

    #[test]
    fn unwanted_lines_can_be_left_out() {
        let all = snapshot(&["process sleep", "file /tmp/a"]);
        assert_eq!(
            all.without(|line| line.starts_with("process")),
            snapshot(&["file /tmp/a"])
        );
    }

    #[test]
    fn reads_the_kernels_socket_tables() {
        let listening = "   0: 0100007F:1A9A 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        assert_eq!(tcp_listener(listening).unwrap(), "127.0.0.1:6810");
        assert_eq!(tcp_listener(&listening.replace(" 0A ", " 01 ")), None);
        let six = "   0: 00000000000000000000000001000000:1F90 0:0 0A 0:0 0:0 0 0 0 1";
        assert_eq!(tcp_listener(six).unwrap(), "[::1]:8080");
        assert_eq!(tcp_listener("  sl  local_address rem_address   st"), None);
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 24711 /run/x.sock";
        assert_eq!(unix_listener(unix).unwrap(), "/run/x.sock");
        assert_eq!(unix_listener(&unix.replace("00010000", "00000000")), None);
    }
}
