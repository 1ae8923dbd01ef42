//! Where the agent's socket is, also from inside a mount namespace in which it is not.
//!
//! A container's plugin (pyxis), or job_container, may have put the task into a mount namespace with another /run by the time that
//! task_init runs. So slurmstepd opens the socket's folder before, and what the task inherits leads there: by `/proc/self/fd`, and only
//! as far as the folder. The agent is found by name in it, so a restarted one is found too.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Held by this process, and by what it forks.
static HELD: OnceLock<Folder> = OnceLock::new();

/// Holds the folder of `socket` from here on. Where that fails there is no agent (yet), and task_init will say so.
pub fn hold(socket: &Path) {
    if let Ok(folder) = Folder::of(socket) {
        let _ = HELD.set(folder);
    }
}

/// Where to connect for `socket`: see [`hold`].
pub fn way(socket: &Path) -> PathBuf {
    way_by(HELD.get(), socket)
}

/// The socket's folder, held open.
#[derive(Debug)]
struct Folder {
    socket: PathBuf,
    held: File,
}

impl Folder {
    /// Opens the folder of `socket`. It is closed when the process executes a program; nothing can be read or written by it.
    fn of(socket: &Path) -> std::io::Result<Self> {
        let folder = socket.parent().unwrap_or(Path::new("/"));
        let held = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(folder)?;
        Ok(Self {
            socket: socket.to_owned(),
            held,
        })
    }

    /// A path to `socket` that leads through the held folder.
    fn way(&self, socket: &Path) -> Option<PathBuf> {
        let name = socket.file_name().filter(|_| self.socket == socket)?;
        Some(
            Path::new("/proc/self/fd")
                .join(self.held.as_raw_fd().to_string())
                .join(name),
        )
    }
}

/// Through the held folder while there is a socket, else by its own path: the folder may have been removed and made again since (systemd
/// does so with a service's RuntimeDirectory).
fn way_by(held: Option<&Folder>, socket: &Path) -> PathBuf {
    held.and_then(|folder| folder.way(socket))
        .filter(|way| way.exists())
        .unwrap_or_else(|| socket.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_held_folder_leads_to_the_socket_and_no_other() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("agent.sock");
        let held = Folder::of(&socket).unwrap();
        // Nobody listens yet.
        assert_eq!(way_by(Some(&held), &socket), socket);
        let first = UnixListener::bind(&socket).unwrap();
        // As from another mount namespace: the path leads nowhere, the way does.
        std::fs::rename(&folder, base.path().join("elsewhere")).unwrap();
        UnixStream::connect(way_by(Some(&held), &socket)).unwrap();
        // An agent that was restarted.
        drop(first);
        std::fs::remove_file(base.path().join("elsewhere/agent.sock")).unwrap();
        let _second = UnixListener::bind(base.path().join("elsewhere/agent.sock")).unwrap();
        UnixStream::connect(way_by(Some(&held), &socket)).unwrap();
        // The folder was removed and made again.
        std::fs::remove_dir_all(base.path().join("elsewhere")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let _third = UnixListener::bind(&socket).unwrap();
        UnixStream::connect(way_by(Some(&held), &socket)).unwrap();
        assert_eq!(
            way_by(Some(&held), Path::new("/other/agent.sock")),
            Path::new("/other/agent.sock")
        );
        assert_eq!(way_by(None, &socket), socket);
    }

    #[test]
    fn the_folder_is_closed_on_exec() {
        let base = tempfile::tempdir().unwrap();
        let held = Folder::of(&base.path().join("agent.sock")).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", held.held.as_raw_fd())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_eq!(flags & libc::O_CLOEXEC, libc::O_CLOEXEC, "{info}");
    }
}
