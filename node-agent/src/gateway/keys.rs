//! The gateway's own keys: a file with one key a line, read again when it changes. Blank lines and `#` lines are skipped.
//!
//! A file that cannot be used lets nobody in: who takes a key away by removing the file must be right.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use http::{HeaderMap, StatusCode};

use super::errors::ApiError;

/// Bigger is no list of keys but a mistake.
const LIMIT: u64 = 1 << 20;

/// What tells one state of the file from the next: device, inode, size, and the times of change in nanoseconds.
type Stamp = (u64, u64, u64, i64, i64, i64, i64, u32);

/// The file and what it said last.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    stamp: Option<Stamp>,
    keys: Result<Vec<Box<[u8]>>, String>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("keys", &self.keys.as_ref().map(Vec::len))
            .finish()
    }
}

impl KeyFile {
    /// Reads `path`; at start a file that cannot be used is an error.
    pub fn open(path: &Path) -> Result<Self, String> {
        let keys = read(path)?;
        let state = Mutex::new(State {
            stamp: stamp(path),
            keys: Ok(keys),
        });
        Ok(Self {
            path: path.to_owned(),
            state,
        })
    }

    /// Lets a request in whose `Authorization: Bearer` (or `x-api-key`, as Anthropic's clients send it) is one of the keys.
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if stamp != state.stamp {
            state.stamp = stamp;
            state.keys = read(&self.path);
            match &state.keys {
                Ok(keys) => tracing::info!("{}: read again, {} keys", self.path.display(), keys.len()),
                Err(why) => tracing::error!("{why}; until then nobody is let in"),
            }
        }
        let Ok(keys) = &state.keys else {
            return Err(ApiError::unavailable(
                StatusCode::SERVICE_UNAVAILABLE,
                "keys_unavailable",
                "the gateway cannot check keys just now; its administrator finds the reason in its log",
            ));
        };
        match presented(headers) {
            None => Err(denied(
                "a key is needed: send it as \"Authorization: Bearer KEY\"",
            )),
            Some(key) if is_one_of(key, keys) => Ok(()),
            Some(_) => Err(denied("this key is not one of this gateway's")),
        }
    }
}

fn denied(message: &str) -> ApiError {
    ApiError::invalid(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(http::header::AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

/// Looks at every key and at every byte of a key of the same length, whatever the outcome.
fn is_one_of(presented: &[u8], keys: &[Box<[u8]>]) -> bool {
    let same = |key: &[u8]| {
        let differing = key.iter().zip(presented).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0 && key.len() == presented.len()
    };
    keys.iter().fold(false, |any, key| any | same(key))
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    Some((
        meta.dev(),
        meta.ino(),
        meta.len(),
        times.0,
        times.1,
        times.2,
        times.3,
        meta.mode(),
    ))
}

fn read(path: &Path) -> Result<Vec<Box<[u8]>>, String> {
    let shown = path.display();
    let failed = |e: std::io::Error| format!("gateway.key_file {shown}: {e}");
    let file = std::fs::File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(format!("gateway.key_file {shown} is no file"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!(
            "gateway.key_file {shown} can be read by others (mode {:04o}); chmod 0600 {shown}, and change the keys",
            meta.mode() & 0o7777
        ));
    }
    if meta.len() > LIMIT {
        return Err(format!(
            "gateway.key_file {shown} has {} bytes; one key a line is meant",
            meta.len()
        ));
    }
    let text = std::io::read_to_string(file).map_err(failed)?;
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<Box<[u8]>> = lines.map(|line| line.as_bytes().into()).collect();
    if keys.is_empty() {
        return Err(format!(
            "gateway.key_file {shown} holds no key; write one a line, or set key_file = \"\""
        ));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        write(&path, text, mode);
        (folder, path)
    }

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn any_key_of_the_file_lets_in_and_nothing_else() {
        let (_folder, path) = file("# ours\nalpha\n\n  beta \n", 0o600);
        let keys = KeyFile::open(&path).unwrap();
        for good in ["Bearer alpha", "bearer beta"] {
            assert!(keys.admit(&with("authorization", good)).is_ok(), "{good}");
        }
        assert!(keys.admit(&with("x-api-key", "beta")).is_ok());
        for bad in [
            "Bearer alph",
            "Bearer alphaa",
            "Bearer ",
            "Basic alpha",
            "alpha",
            "Bearer # ours",
        ] {
            let error = keys.admit(&with("authorization", bad)).unwrap_err();
            assert_eq!(error.status, StatusCode::UNAUTHORIZED, "{bad}");
        }
        assert_eq!(
            keys.admit(&HeaderMap::new()).unwrap_err().status,
            StatusCode::UNAUTHORIZED
        );
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        for mode in [0o640, 0o604, 0o644, 0o622] {
            let (_folder, path) = file("alpha\n", mode);
            let error = KeyFile::open(&path).unwrap_err();
            assert!(error.contains("chmod 0600"), "{error}");
        }
        let (_folder, path) = file("# none\n", 0o600);
        assert!(KeyFile::open(&path).unwrap_err().contains("holds no key"));
    }

    #[test]
    fn a_change_counts_at_once_and_a_broken_file_lets_nobody_in() {
        let (_folder, path) = file("alpha\n", 0o600);
        let keys = KeyFile::open(&path).unwrap();
        write(&path, "gamma-longer\n", 0o600);
        assert!(keys.admit(&with("authorization", "Bearer alpha")).is_err());
        assert!(keys.admit(&with("authorization", "Bearer gamma-longer")).is_ok());
        write(&path, "gamma-longer\n", 0o644);
        let error = keys
            .admit(&with("authorization", "Bearer gamma-longer"))
            .unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        std::fs::remove_file(&path).unwrap();
        assert!(keys.admit(&with("authorization", "Bearer gamma-longer")).is_err());
        write(&path, "delta\n", 0o600);
        assert!(keys.admit(&with("authorization", "Bearer delta")).is_ok());
    }

    #[test]
    fn keys_are_not_shown_by_debug() {
        let (_folder, path) = file("very-secret\n", 0o600);
        assert!(!format!("{:?}", KeyFile::open(&path).unwrap()).contains("very-secret"));
    }
}
