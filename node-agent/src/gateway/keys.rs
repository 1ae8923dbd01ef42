//! The gateway's own keys: a file with one key a line, read again when it changes. Blank lines and `#` lines are skipped.
//!
//! Behind a key may stand what is true of it: `KEY name=alice requests_per_minute=60 concurrent=8`.
//!
//! A file that cannot be used lets nobody in: who takes a key away by removing the file must be right.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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
    keys: Result<Vec<Arc<Key>>, String>,
}

/// One key, who has it, and its share.
struct Key {
    secret: Box<[u8]>,
    name: String,
    requests_per_minute: Option<u32>,
    concurrent: Option<u32>,
    /// Requests that it may begin now, and when that was counted.
    left: Mutex<(f64, Instant)>,
    in_flight: AtomicU32,
}

/// A key's request, until its answer is over.
pub struct Permit(Arc<Key>);

impl Permit {
    /// Who has the key; empty if the file does not say.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit({:?})", self.0.name)
    }
}

impl Key {
    /// `KEY name=… requests_per_minute=… concurrent=…`. The error does not repeat the line, which has the key in it.
    fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let mut key = Self {
            secret: words.next().unwrap_or_default().as_bytes().into(),
            name: String::new(),
            requests_per_minute: None,
            concurrent: None,
            left: Mutex::new((0.0, Instant::now())),
            in_flight: AtomicU32::new(0),
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || match value.parse::<u32>() {
                Ok(number) if number > 0 => Ok(Some(number)),
                _ => Err(format!("{name} is a number from 1")),
            };
            match name {
                "name" if !value.is_empty() => key.name = value.to_owned(),
                "requests_per_minute" => key.requests_per_minute = number()?,
                "concurrent" => key.concurrent = number()?,
                _ => {
                    return Err("behind a key there may be name=…, requests_per_minute=…, concurrent=…, and nothing else".into());
                }
            }
        }
        key.left = Mutex::new((key.burst(), Instant::now()));
        Ok(key)
    }

    /// What it may begin at once: a sixth of a minute's share, one at least.
    fn burst(&self) -> f64 {
        self.requests_per_minute
            .map_or(0.0, |rate| (f64::from(rate) / 6.0).max(1.0))
    }

    fn admit(self: &Arc<Self>, now: Instant) -> Result<Permit, ApiError> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.clone());
        if let Some(concurrent) = self.concurrent
            && before >= concurrent
        {
            let text = format!("this key has {concurrent} requests under way, and may have no more at once");
            return Err(limited(&text, 1));
        }
        if let Some(rate) = self.requests_per_minute {
            let per_second = f64::from(rate) / 60.0;
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let grown = now.saturating_duration_since(left.1).as_secs_f64() * per_second;
            *left = ((left.0 + grown).min(self.burst()), now);
            if left.0 < 1.0 {
                // A wait of at most a minute, rounded up to a second.
                let wait = ((1.0 - left.0) / per_second).ceil().clamp(1.0, 60.0);
                let text = format!("this key may begin {rate} requests a minute");
                return Err(limited(&text, wait as u32));
            }
            left.0 -= 1.0;
        }
        Ok(permit)
    }
}

fn limited(message: &str, seconds: u32) -> ApiError {
    ApiError {
        kind: "rate_limit_error",
        ..ApiError::invalid(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
    }
    .retry_in(seconds)
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
    pub fn admit(&self, headers: &HeaderMap) -> Result<Permit, ApiError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if stamp != state.stamp {
            state.stamp = stamp;
            let before = std::mem::replace(&mut state.keys, read(&self.path));
            if let (Ok(before), Ok(now)) = (before, &mut state.keys) {
                carry_over(&before, now);
            }
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
            Some(presented) => match found(presented, keys) {
                Some(key) => key.admit(Instant::now()),
                None => Err(denied("this key is not one of this gateway's")),
            },
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
fn found<'a>(presented: &[u8], keys: &'a [Arc<Key>]) -> Option<&'a Arc<Key>> {
    let same = |key: &[u8]| {
        let differing = key.iter().zip(presented).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0 && key.len() == presented.len()
    };
    keys.iter().fold(
        None,
        |found, key| if same(&key.secret) { Some(key) } else { found },
    )
}

/// A key whose line is as before has had what it has had.
fn carry_over(before: &[Arc<Key>], now: &mut [Arc<Key>]) {
    let line = |key: &Key| {
        (
            key.secret.clone(),
            key.name.clone(),
            key.requests_per_minute,
            key.concurrent,
        )
    };
    for key in now {
        if let Some(old) = before.iter().find(|old| line(old) == line(key)) {
            *key = old.clone();
        }
    }
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

fn read(path: &Path) -> Result<Vec<Arc<Key>>, String> {
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
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let key = |(at, line): (usize, &str)| match Key::parse(line) {
        Ok(key) => Ok(Arc::new(key)),
        Err(why) => Err(format!("gateway.key_file {shown}, line {}: {why}", at + 1)),
    };
    let keys = lines.map(key).collect::<Result<Vec<_>, _>>()?;
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
    fn a_key_has_its_share_and_no_more() {
        let (_folder, path) = file("alpha name=ada concurrent=2\nbeta requests_per_minute=6\n", 0o600);
        let keys = KeyFile::open(&path).unwrap();
        let ask = |key: &str| keys.admit(&with("authorization", &format!("Bearer {key}")));
        let (first, second) = (ask("alpha").unwrap(), ask("alpha").unwrap());
        assert_eq!(first.name(), "ada");
        let third = ask("alpha").unwrap_err();
        assert_eq!((third.status.as_u16(), third.code), (429, "rate_limit_exceeded"));
        drop(second);
        assert!(ask("alpha").is_ok());
        assert!(ask("beta").is_ok());
        let second = ask("beta").unwrap_err();
        assert!((1..=10).contains(&second.retry_after.unwrap()), "{second:?}");
        // The file is touched, and one key has had what it has had.
        write(&path, "alpha\nbeta requests_per_minute=6\n# more\n", 0o600);
        assert!(ask("beta").is_err() && ask("alpha").is_ok());
    }

    #[test]
    fn a_share_grows_with_time() {
        let key = Arc::new(Key::parse("k requests_per_minute=60").unwrap());
        let begin = Instant::now();
        let after = |seconds: u64| key.admit(begin + std::time::Duration::from_secs(seconds));
        assert_eq!((0..20).filter(|_| after(0).is_ok()).count(), 10);
        assert!(after(1).is_ok() && after(1).is_err());
        assert_eq!((0..20).filter(|_| after(600).is_ok()).count(), 10);
    }

    #[test]
    fn what_stands_behind_a_key_and_is_none_is_said_with_its_line_and_without_the_key() {
        for bad in [
            "s3cret colour=red",
            "s3cret concurrent=0",
            "s3cret requests_per_minute=many",
            "s3cret more",
        ] {
            let (_folder, path) = file(&format!("alpha\n{bad}\n"), 0o600);
            let error = KeyFile::open(&path).unwrap_err();
            assert!(error.contains("line 2") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn keys_are_not_shown_by_debug() {
        let (_folder, path) = file("very-secret\n", 0o600);
        assert!(!format!("{:?}", KeyFile::open(&path).unwrap()).contains("very-secret"));
    }
}
