//! What a runner leaves behind that was killed before it could clean up: its private folder on node-local disk.
//!
//! It lies in a folder that everybody may write to, so it is removed with the rights of the job's owner, not with root's. Only real folders
//! of that owner are touched, and no link is followed (`remove_dir_all` goes down by descriptors).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, setfsuid};

/// This thread's rights on files are a user's until it is dropped (setfsuid(2): with a uid other than 0 root's powers over files go too).
struct As(Uid);

impl As {
    fn user(uid: u32) -> Self {
        Self(setfsuid(Uid::from_raw(uid)))
    }
}

impl Drop for As {
    fn drop(&mut self) {
        setfsuid(self.0);
    }
}

/// Removes the private folders of a job that is over (see `step/private.rs` for their names) from `scratch` and /tmp.
pub fn folders(scratch: &Path, job_id: u32, uid: u32) {
    let _rights = As::user(uid);
    let prefix = format!("sserve-{job_id}-");
    let mut places = vec![scratch];
    // The runner falls back to it where `scratch` is too long a path.
    if scratch != Path::new("/tmp") {
        places.push(Path::new("/tmp"));
    }
    for place in places {
        let Ok(entries) = std::fs::read_dir(place) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let named = entry.file_name().to_string_lossy().starts_with(&prefix);
            let owned =
                named && std::fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == uid);
            if !owned {
                continue;
            }
            match std::fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed what a killed runner left"),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => tracing::warn!(path = %path.display(), "cannot be removed: {e}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_jobs_own_folders_go() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let uid = nix::unistd::getuid().as_raw();
        for name in ["sserve-7-0a0b0c0d", "sserve-70-0a0b0c0d", "other"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), "x").unwrap();
        }
        fs::write(at("sserve-7-file"), "x").unwrap();
        std::os::unix::fs::symlink(at("other"), at("sserve-7-link")).unwrap();
        folders(scratch.path(), 7, uid + 1);
        assert!(at("sserve-7-0a0b0c0d").exists(), "somebody else's");
        folders(scratch.path(), 7, uid);
        assert!(!at("sserve-7-0a0b0c0d").exists());
        for name in [
            "sserve-70-0a0b0c0d",
            "other/file",
            "sserve-7-file",
            "sserve-7-link",
        ] {
            assert!(at(name).exists(), "{name} is no folder of job 7's");
        }
    }
}
