//! The small registry that wrapper scripts announce themselves to: notes when which name came.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serve_lab::Node;

/// One that runs until this process ends.
pub struct Registry {
    /// `HOST:PORT`, as other nodes reach it.
    pub address: String,
    noted: Arc<Mutex<Vec<(String, Instant)>>>,
}

/// A script that says nothing has no business here.
const LIMIT: Duration = Duration::from_secs(5);

impl Registry {
    /// Listens on `node`.
    pub fn open(node: &Node) -> Result<Self> {
        let listener = node
            .inside(|| TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], 0))))?
            .context("no port for the registry")?;
        let address = format!("{}:{}", node.address(), listener.local_addr()?.port());
        let noted: Arc<Mutex<Vec<_>>> = Arc::default();
        let into = noted.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let now = Instant::now();
                // One at a time: scripts that come at once are answered one after the other, but noted when they came.
                if let Ok(name) = answer(stream) {
                    into.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((name, now));
                }
            }
        });
        Ok(Self { address, noted })
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Who has come, and when.
    pub fn noted(&self) -> Vec<(String, Instant)> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads `POST /NAME`, and says yes.
fn answer(stream: TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut rest = String::new();
    while reader.read_line(&mut rest)? > 2 {
        rest.clear();
    }
    let name = line
        .strip_prefix("POST /")
        .and_then(|rest| rest.split(' ').next());
    let name = name
        .with_context(|| format!("{line:?} registers nothing"))?
        .to_owned();
    (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    Ok(name)
}
