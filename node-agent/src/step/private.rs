//! The runner's private folder on node-local disk: the engine's socket, caches and temporary files. Made 0700, removed at the end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A Unix socket's path ends at 108 bytes, and other languages' libraries stop a little earlier.
const SOCKET_PATH_MAX: usize = 100;

/// The folder, while it exists.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
}

impl PrivateDir {
    /// Makes a new folder of this job under `scratch`, or under /tmp where `scratch` is too long a path. The error is one line.
    pub fn make(scratch: &Path, job_id: u32) -> Result<Self, String> {
        let made = Self::make_in(scratch, job_id);
        match made {
            Err(why) if scratch != Path::new("/tmp") => {
                Self::make_in(Path::new("/tmp"), job_id).map_err(|_| why)
            }
            made => made,
        }
    }

    fn make_in(scratch: &Path, job_id: u32) -> Result<Self, String> {
        // Nobody can have guessed the name; should it be there all the same, another one is taken.
        for _ in 0..4 {
            let path = scratch.join(format!("sserve-{job_id}-{:08x}", rand::random::<u32>()));
            let dir = Self { path };
            if dir.socket().as_os_str().len() >= SOCKET_PATH_MAX {
                return Err(format!("{}: too long for a Unix socket", scratch.display()));
            }
            match DirBuilder::new().mode(0o700).create(&dir.path) {
                Ok(()) => {
                    for folder in [dir.caches(), dir.tmp()] {
                        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
                    }
                    return Ok(dir);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("cannot make a folder in {}: {e}", scratch.display())),
            }
        }
        Err(format!(
            "{}: four names tried, all of them taken",
            scratch.display()
        ))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the engine listens.
    pub fn socket(&self) -> PathBuf {
        self.path.join("s")
    }

    /// For compiled kernels and the like.
    pub fn caches(&self) -> PathBuf {
        self.path.join("c")
    }

    /// The engine's TMPDIR.
    pub fn tmp(&self) -> PathBuf {
        self.path.join("t")
    }

    /// Removes it with all it holds.
    pub fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Best effort, for ways out that did not remove it in order.
        let _ = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_private_and_goes() {
        let scratch = tempfile::tempdir().expect("a folder");
        let dir = PrivateDir::make(scratch.path(), 7).expect("made");
        let mode = std::fs::metadata(dir.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(dir.path().starts_with(scratch.path()) && dir.tmp().is_dir());
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_not_used() {
        let scratch = tempfile::tempdir().expect("a folder");
        let long = scratch.path().join("x".repeat(90));
        std::fs::create_dir(&long).expect("made");
        let dir = PrivateDir::make(&long, 7).expect("made elsewhere");
        assert!(dir.path().starts_with("/tmp") && !dir.path().starts_with(&long));
    }
}
