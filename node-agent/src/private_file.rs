//! Files that hold secrets, and what is made of files that somebody may replace while we run.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bigger is no list of tokens, no key and no certificate, but a mistake.
const LIMIT: u64 = 1 << 20;

/// The text of a file that only its owner may read or write, who is root or whoever runs this program. `name` is the setting that names it.
pub fn read_private(name: &str, path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |e: std::io::Error| format!("{name} {shown}: {e}");
    let file = std::fs::File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(format!("{name} {shown} is no file"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!(
            "{name} {shown} can be read or written by others (mode {:04o}); chmod 0600 {shown}, and change what it holds",
            meta.mode() & 0o7777
        ));
    }
    let own = nix::unistd::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(format!(
            "{name} {shown} belongs to uid {}; chown root {shown}",
            meta.uid()
        ));
    }
    if meta.len() > LIMIT {
        return Err(format!(
            "{name} {shown} has {} bytes; at most {LIMIT} are read",
            meta.len()
        ));
    }
    std::io::read_to_string(file).map_err(failed)
}

/// What tells one state of a file from the next: device, inode, size, mode, owner, and the times of change in nanoseconds.
type Stamp = (u64, u64, u64, u32, u32, i64, i64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((
        meta.dev(),
        meta.ino(),
        meta.len(),
        meta.mode(),
        meta.uid(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    ))
}

/// Something made of files, and made again when one of them has changed. One that went bad leaves what was made before; that is said once, in
/// one line.
pub struct Followed<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    stamps: Vec<Option<Stamp>>,
    made: Arc<T>,
}

impl<T> std::fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Followed").field(&self.files).finish()
    }
}

impl<T> Followed<T> {
    /// Makes it for the first time; then what is wrong is an error.
    pub fn new(
        files: &[&Path],
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let files: Vec<PathBuf> = files.iter().map(|path| path.to_path_buf()).collect();
        // Before they are read: a change meanwhile is seen at the next look.
        let stamps = files.iter().map(|path| stamp(path)).collect();
        let made = Arc::new(make()?);
        Ok(Self {
            files,
            make: Box::new(make),
            last: Mutex::new(Last { stamps, made }),
        })
    }

    /// As the files say now.
    pub fn now(&self) -> Arc<T> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps: Vec<_> = self.files.iter().map(|path| stamp(path)).collect();
        if stamps != last.stamps {
            last.stamps = stamps;
            match (self.make)() {
                Ok(made) => {
                    last.made = Arc::new(made);
                    tracing::info!("{}: read again", self.shown());
                }
                Err(why) => tracing::error!("{why}; what was read before stays in force"),
            }
        }
        last.made.clone()
    }

    fn shown(&self) -> String {
        let shown: Vec<_> = self.files.iter().map(|path| path.display().to_string()).collect();
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_what_is_its_owners_alone_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for mode in [0o640, 0o604, 0o620, 0o644] {
            write(&path, "x", mode);
            let error = read_private("a.b", &path).unwrap_err();
            assert!(error.contains("a.b") && error.contains("chmod 0600"), "{error}");
        }
        write(&path, "x", 0o600);
        assert_eq!(read_private("a.b", &path).unwrap(), "x");
        assert!(
            read_private("a.b", folder.path())
                .unwrap_err()
                .contains("no file")
        );
        assert!(read_private("a.b", &folder.path().join("none")).is_err());
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(read_private("a.b", &path).unwrap_err().contains("chown root"));
        }
    }

    #[test]
    fn a_change_counts_at_once_and_a_bad_one_leaves_what_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        write(&path, "one", 0o600);
        let made = std::sync::atomic::AtomicU32::new(0);
        let counted = Arc::new(made);
        let (read, count) = (path.clone(), counted.clone());
        let followed = Followed::new(&[&path], move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            read_private("a.b", &read)
        });
        let followed = followed.unwrap();
        assert_eq!(*followed.now(), "one");
        write(&path, "another", 0o600);
        assert_eq!(*followed.now(), "another");
        std::fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            assert_eq!(*followed.now(), "another");
        }
        // Made at the start, for the change, and for the loss: not at every look.
        assert_eq!(counted.load(std::sync::atomic::Ordering::Relaxed), 3);
        write(&path, "third", 0o600);
        assert_eq!(*followed.now(), "third");
    }
}
