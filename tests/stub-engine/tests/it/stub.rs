//! Starts a stub and speaks HTTP/1.0 to it: an answer then is everything up to the end of the connection.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// No wait in these tests is longer.
const LIMIT: Duration = Duration::from_secs(20);

/// Polls until `is` holds; the panic names `what`.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LIMIT, "waited {LIMIT:?} for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A running stub; killed when dropped.
pub struct Stub {
    pub child: Child,
    pub dir: TempDir,
}

impl Stub {
    /// Starts one; `flags` come after the model and the socket.
    pub fn start(flags: &str, script: &[(&str, &str)]) -> Self {
        let dir = TempDir::with_prefix("stub-engine-").unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_stub-engine"))
            .args(["serve", "/weights/tiny", "--served-model-name", "tiny", "--uds"])
            .arg(dir.path().join("v.sock"))
            .args(flags.split_whitespace())
            .env("TMPDIR", dir.path())
            .envs(script.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, dir }
    }

    /// Starts one and waits until it is ready.
    pub fn ready(flags: &str, script: &[(&str, &str)]) -> Self {
        let stub = Self::start(flags, script);
        until("a connection", || UnixStream::connect(stub.socket()).is_ok());
        stub
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("v.sock")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// How it ended.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the stub to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Sends a request and leaves the answer to be read.
    pub fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        BufReader::new(stream)
    }

    /// A whole exchange.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        Answer::read(self.open(method, path, "", body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &body.to_string())
    }

    /// One number of `/_stub/state`.
    pub fn state(&self, key: &str) -> u64 {
        self.get("/_stub/state").json()[key].as_u64().unwrap()
    }

    /// A stream of this many tokens, up to and including its first event.
    pub fn streaming(&self, tokens: u64) -> BufReader<UnixStream> {
        let body = serde_json::json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }],
                                       "stream": true, "max_tokens": tokens });
        let mut reader = self.open("POST", "/v1/chat/completions", "", &body.to_string());
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert_ne!(
                reader.read_line(&mut line).unwrap(),
                0,
                "the stream ended before its first event"
            );
        }
        reader
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn read(mut from: impl Read) -> Self {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// The events of a stream's rest.
pub fn events(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|l| l.strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}

/// Is this process there and no zombie?
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}

/// The children of a process.
pub fn children(pid: Pid) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|p| p.parse().unwrap()).collect()
}
