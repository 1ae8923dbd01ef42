//! The least HTTP/1.1 client that can be: one connection, one request after the other, blocking. What it adds to a latency is a system call.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serve_lab::Node;

/// Nothing that is asked here takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket in a node.
    Unix(PathBuf),
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that is kept.
pub struct Connection {
    stream: Box<dyn Stream>,
    /// Read and not used yet.
    pending: Vec<u8>,
}

/// The head of an answer.
struct Head {
    status: u16,
    length: Option<usize>,
    chunked: bool,
}

impl Connection {
    /// Connects from inside `node`, as root.
    pub fn open(node: &Node, address: &Address) -> Result<Self> {
        let opened = node.inside(|| -> std::io::Result<Box<dyn Stream>> {
            Ok(match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect_timeout(address, LIMIT)?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(LIMIT))?;
                    stream.set_write_timeout(Some(LIMIT))?;
                    Box::new(stream)
                }
                Address::Unix(path) => {
                    let stream = UnixStream::connect(path)?;
                    stream.set_read_timeout(Some(LIMIT))?;
                    stream.set_write_timeout(Some(LIMIT))?;
                    Box::new(stream)
                }
            })
        })?;
        let stream = opened.with_context(|| format!("can't connect to {address:?} on {}", node.name()))?;
        Ok(Self {
            stream,
            pending: Vec::new(),
        })
    }

    /// Connects from where we are.
    pub fn here(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self {
            stream: Box::new(stream),
            pending: Vec::new(),
        })
    }

    /// Sends `request` as it is and hands over the answer's body piece by piece as it arrives. Gives the status; an answer that breaks off
    /// is an error.
    pub fn exchange(&mut self, request: &[u8], mut body: impl FnMut(&[u8])) -> Result<u16> {
        self.stream.write_all(request).context("can't send the request")?;
        let head = self.head()?;
        match head {
            Head { chunked: true, .. } => self.chunks(&mut body)?,
            Head {
                length: Some(length), ..
            } => self.take(length, &mut body)?,
            // An answer that ends with its connection: nothing here sends one.
            _ => bail!("an answer with neither a length nor chunks ({})", head.status),
        }
        Ok(head.status)
    }

    /// The same with the whole body at the end.
    pub fn ask(&mut self, request: &[u8]) -> Result<(u16, String)> {
        let mut body = Vec::new();
        let status = self.exchange(request, |piece| body.extend_from_slice(piece))?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    fn head(&mut self) -> Result<Head> {
        let end = loop {
            match find(&self.pending, b"\r\n\r\n") {
                Some(end) => break end,
                None => self.fill()?,
            }
        };
        let head: Vec<u8> = self.pending.drain(..end + 4).collect();
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let mut lines = text.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|word| word.parse().ok());
        let mut parsed = Head {
            status: status.context("no HTTP answer")?,
            length: None,
            chunked: false,
        };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            match name {
                "content-length" => parsed.length = value.trim().parse().ok(),
                "transfer-encoding" => parsed.chunked = value.contains("chunked"),
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn chunks(&mut self, body: &mut impl FnMut(&[u8])) -> Result<()> {
        loop {
            let end = loop {
                match find(&self.pending, b"\r\n") {
                    Some(end) => break end,
                    None => self.fill()?,
                }
            };
            let line: Vec<u8> = self.pending.drain(..end + 2).collect();
            let digits = String::from_utf8_lossy(&line);
            let digits = digits.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16)
                .with_context(|| format!("{digits:?} is no size of a chunk"))?;
            if size > 0 {
                self.take(size, body)?;
            }
            // The line's end after each chunk, and after the last one.
            self.take(2, &mut |_| {})?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Hands over the next `wanted` bytes.
    fn take(&mut self, mut wanted: usize, body: &mut impl FnMut(&[u8])) -> Result<()> {
        while wanted > 0 {
            if self.pending.is_empty() {
                self.fill()?;
            }
            let piece = wanted.min(self.pending.len());
            body(&self.pending[..piece]);
            self.pending.drain(..piece);
            wanted -= piece;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let mut buffer = [0; 64 * 1024];
        let read = self.stream.read(&mut buffer).context("no answer")?;
        if read == 0 {
            bail!("the answer broke off");
        }
        self.pending.extend_from_slice(&buffer[..read]);
        Ok(())
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// A request for `path`; the host's name is looked at by nobody here.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").into()
}

/// A question to a chat model; `more` are further members of the JSON object.
pub fn chat(model: &str, key: Option<&str>, more: &str) -> Vec<u8> {
    let body = format!(r#"{{"model":{model:?},"messages":[{{"role":"user","content":"hello"}}]{more}}}"#);
    let key = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n{key}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Gives what is to be read, one byte at a time, and takes everything.
    struct Slow(Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(&mut buffer[..1])
        }
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn answering(text: &str) -> Connection {
        Connection {
            stream: Box::new(Slow(Cursor::new(text.into()))),
            pending: Vec::new(),
        }
    }

    #[test]
    fn reads_answers_of_a_known_length_and_in_chunks_one_after_the_other() {
        let mut connection = answering(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        );
        assert_eq!(connection.ask(b"").expect("an answer"), (200, "hi".into()));
        assert_eq!(connection.ask(b"").expect("an answer"), (503, "abcde".into()));
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error() {
        let mut connection = answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab");
        assert!(connection.ask(b"").is_err());
    }
}
