//! Notices at once when a process of the engine ends, not only its first one: vLLM's API server lives on for some 5 s after its engine
//! has died, and then exits with 0.

#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use futures_util::future::select_all;
use nix::errno::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::step::processes;

/// Handles on the processes that an engine had when it was ready.
pub struct Watch(Vec<(i32, AsyncFd<OwnedFd>)>);

impl Watch {
    /// Watches all processes of the engine but its first. Those that cannot be watched (a kernel before 5.3) are left out: the end of the
    /// first process is noticed all the same.
    pub fn over(engine: i32) -> Self {
        let family = processes::family(engine);
        let others = family
            .iter()
            .filter(|process| process.pid != engine && !process.zombie);
        let watched = others.filter_map(|process| {
            let handle = pidfd_open(process.pid).ok()?;
            // SAFETY: the descriptor is owned by the AsyncFd and closed with it, not before.
            let handle = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) };
            Some((process.pid, handle.ok()?))
        });
        Self(watched.collect())
    }

    /// Waits until one of them ends and gives its id; each is told once. With none left it waits for ever. May be dropped and called again.
    pub async fn next_end(&mut self) -> i32 {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let at = {
            let ends = self.0.iter().map(|(_, handle)| Box::pin(handle.readable()));
            select_all(ends).await.1
        };
        self.0.swap_remove(at).0
    }
}

/// pidfd_open(2): readable once the process has ended.
fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two integers and touches no memory of ours.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_child_is_noticed() {
        // The test process stands for the runner: its children are family, whatever their session.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let pid = child.id() as i32;
        let mut watch = Watch::over(-1);
        watch.0.retain(|(watched, _)| *watched == pid);
        assert_eq!(watch.0.len(), 1);
        child.kill().expect("killed");
        assert_eq!(watch.next_end().await, pid);
        child.wait().expect("reaped");
    }
}
