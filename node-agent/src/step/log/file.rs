//! The file of the engine's log: `serve-JOBID.log`, opened as the user, where the user's own output goes if that can be written.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open log, or none.
pub struct LogFile {
    file: Option<File>,
    path: PathBuf,
    note: String,
}

impl LogFile {
    /// Opens it in the first of `dirs` that allows it, else in `last_resort`, which goes when the model ends.
    pub fn open(dirs: &[String], last_resort: &Path, job_id: u32) -> Self {
        let name = format!("serve-{job_id}.log");
        let mut refused = Vec::new();
        for dir in dirs.iter().filter(|dir| dir.starts_with('/')) {
            let path = Path::new(dir).join(&name);
            match open(&path) {
                Ok(file) => return Self::opened(file, path, &refused, ""),
                Err(e) => refused.push(format!("{}: {e}", path.display())),
            }
        }
        let path = last_resort.join(&name);
        match open(&path) {
            Ok(file) => Self::opened(file, path, &refused, " until the model ends"),
            Err(e) => {
                refused.push(format!("{}: {e}", path.display()));
                let note = format!("no log of the server is kept ({})", refused.join("; "));
                Self { note, ..Self::none() }
            }
        }
    }

    /// Nowhere.
    pub fn none() -> Self {
        Self {
            file: None,
            path: PathBuf::new(),
            note: String::new(),
        }
    }

    fn opened(file: File, path: PathBuf, refused: &[String], how_long: &str) -> Self {
        let note = if refused.is_empty() {
            String::new()
        } else {
            format!(
                "the server's log is {}{how_long}, because another place refused it ({})",
                path.display(),
                refused.join("; ")
            )
        };
        Self {
            file: Some(file),
            path,
            note,
        }
    }

    /// Where it is; empty if nowhere.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// What the user should be told about the place; empty if it is the right one.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Appends. The first failure ends the writing and is given as a note for the user; later lines go nowhere without a word.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        file.write_all(bytes).map_err(|e| {
            self.file = None;
            format!("the server's log ends early: {}: {e}", self.path.display())
        })
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        // Never through a link, and never waiting for a reader of a pipe that lies there.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() || !kind.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn it_lies_in_the_first_folder_that_allows_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let dirs = [folder.path().display().to_string()];
        let mut log = LogFile::open(&dirs, Path::new("/nowhere"), 7);
        log.write_all(b"one\n").expect("written");
        let path = folder.path().join("serve-7.log");
        assert_eq!((log.path(), log.note()), (path.display().to_string(), ""));
        assert_eq!(std::fs::read(&path).expect("read"), b"one\n");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o137, 0);
    }

    #[test]
    fn a_link_and_a_pipe_are_not_followed_and_another_place_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let (linked, piped, last) = (
            folder.path().join("a"),
            folder.path().join("b"),
            folder.path().join("c"),
        );
        for dir in [&linked, &piped, &last] {
            std::fs::create_dir(dir).expect("made");
        }
        symlink("/etc/passwd", linked.join("serve-7.log")).expect("linked");
        nix::unistd::mkfifo(&piped.join("serve-7.log"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let dirs = [
            linked.display().to_string(),
            piped.display().to_string(),
            "relative".into(),
        ];
        let log = LogFile::open(&dirs, &last, 7);
        assert!(log.path().starts_with(&last.display().to_string()));
        assert!(
            log.note().contains("until the model ends") && !log.note().contains('\n'),
            "{}",
            log.note()
        );
    }

    #[test]
    fn a_full_disk_is_said_once() {
        let mut log = LogFile {
            file: Some(
                OpenOptions::new()
                    .write(true)
                    .open("/dev/full")
                    .expect("/dev/full"),
            ),
            path: "/dev/full".into(),
            note: String::new(),
        };
        let note = log.write_all(b"x").expect_err("full");
        assert!(note.contains("/dev/full"), "{note}");
        assert!(log.write_all(b"x").is_ok());
    }
}
