//! Clients of the gateway: an open stream, and a single request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serve_lab::{Background, Node, wait_for};

use crate::site::Site;

/// An answer that comes token by token.
pub struct Stream {
    client: Background,
    node: Node,
    log: String,
}

impl Site {
    /// Asks for `tokens` tokens at `url` (the gateway's if `None`), streamed, as alice on the login node; `key` for a guard.
    pub fn open_stream(&self, url: Option<&str>, key: &str, model: &str, tokens: u32) -> Result<Stream> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let node = self.lab.login().clone();
        let log = format!("/tmp/stream-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let body = format!(
            r#"{{"model":{model:?},"messages":[{{"role":"user","content":"count"}}],"max_tokens":{tokens},"stream":true}}"#
        );
        let url = format!("{}/chat/completions", url.unwrap_or("http://127.0.0.1:8700/v1"));
        let bearer = format!("Authorization: Bearer {key}");
        let json = "content-type: application/json";
        let argv = ["curl", "-sSN", "-H", json, "-H", &bearer, "-d", &body, &url];
        let client = node.command("alice", argv).spawn(&log)?;
        let stream = Stream { client, node, log };
        wait_for(Duration::from_secs(15), "the first token", || {
            Ok((stream.pieces() > 0).then_some(()))
        })
        .with_context(|| stream.text())?;
        Ok(stream)
    }
}

impl Stream {
    /// What came so far.
    pub fn text(&self) -> String {
        self.node.read_text(&self.log).unwrap_or_default()
    }

    /// How many pieces with text came so far.
    pub fn pieces(&self) -> usize {
        self.text().matches("\"content\":").count()
    }

    /// Waits for its proper end, and gives all of it.
    pub fn finish(self) -> Result<String> {
        let status = self.client.wait(Duration::from_secs(30))?;
        let text = self.text();
        anyhow::ensure!(
            status.success() && text.trim_end().ends_with("data: [DONE]"),
            "the stream broke ({status}): {text}"
        );
        Ok(text)
    }

    /// Goes away in the middle of it.
    pub fn hang_up(self) -> Result<()> {
        self.client.signal(Signal::SIGKILL)?;
        self.client.wait(Duration::from_secs(10)).map(drop)
    }
}

/// How long a client waits for the next byte.
const PATIENCE: Duration = Duration::from_secs(15);

/// One request, at the gateway of the node that the thread is in: its status, with OpenAI's code of an error; a body that is cut off is broken.
pub(crate) fn ask(model: &str) -> std::io::Result<String> {
    let body =
        format!(r#"{{"model":{model:?},"messages":[{{"role":"user","content":"hi"}}],"max_tokens":4}}"#);
    let mut socket = TcpStream::connect("127.0.0.1:8700")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    write!(
        socket,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or("no status");
    let from = body.find('{').unwrap_or(body.len());
    let to = body.rfind('}').map_or(from, |end| end + 1);
    let json: Option<serde_json::Value> = serde_json::from_str(&body[from..to.max(from)]).ok();
    Ok(match json {
        None => format!("{status}, cut off: {body}"),
        Some(json) => match json["error"]["code"].as_str() {
            None => status.to_owned(),
            Some(code) => format!("{status} {code}"),
        },
    })
}
