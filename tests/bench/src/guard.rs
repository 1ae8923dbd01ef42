//! What the guard costs: the same requests to the engine's own Unix socket, through the guard of a served job, and through nginx as the same
//! proxy in front of the same socket. All three in every round, in random order, each on a connection of its own that is kept.
//!
//! A small request is timed from its first byte to the last one of its answer. A token is timed from its making, which the stub engine
//! stamps it with, to its arrival at the client.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use rand::seq::SliceRandom;
use serve_e2e::Site;
use serve_lab::{Background, Node, wait_for};

use crate::bed::{Effort, WITH, engine_socket, wait_idle};
use crate::http::{Address, Connection, chat};
use crate::report::{Goal, Row};
use crate::stats::Samples;

/// Added at the median, in ms.
const GOAL: f64 = 0.2;

const MODEL: &str = "bench-fast";

/// Tokens of a stream, one every 3 ms.
const TOKENS: usize = 60;

/// Where nginx listens.
const NGINX: u16 = 18_999;

/// Runs it.
pub fn measure(site: &Site, effort: Effort) -> Result<Vec<Row>> {
    let node = site.node(WITH);
    let job = site.sbatch(
        "alice",
        &["--serve-model=bench-fast", "-w", node.name()],
        "sserve hold",
    )?;
    job.wait_model("ready")?;
    let (guard, key) = endpoint(site, job.id)?;
    let socket = engine_socket(node, job.id)?;
    let (nginx, at) = start_nginx(node, guard, &key, &socket)?;
    let mut doors = [
        Door::open(node, &Address::Unix(socket), None)?,
        Door::open(node, &Address::Tcp(guard), Some(&key))?,
        Door::open(node, &Address::Tcp(at), Some(&key))?,
    ];
    let small = turns(&mut doors, effort.rounds(3000, 300), Door::small)?;
    let tokens = turns(&mut doors, effort.rounds(40, 8), Door::stream)?;
    nginx.signal(Signal::SIGTERM)?;
    nginx.wait(Duration::from_secs(10))?;
    job.cancel()?;
    wait_idle(node)?;
    let mut rows = self::rows("small request", &small);
    rows.extend(self::rows("token of a stream", &tokens));
    Ok(rows)
}

/// Bare socket, guard, nginx.
fn rows(what: &str, [bare, guard, nginx]: &[Samples; 3]) -> Vec<Row> {
    let added = |q: f64, name: &str, goal| {
        Row::new(
            format!("{what}: added by the guard, {name}"),
            guard.added(bare, q),
            "ms",
            goal,
        )
        .beside("nginx", nginx.added(bare, q))
    };
    vec![
        added(0.5, "median", Goal::AtMost(GOAL)),
        added(0.99, "p99", Goal::None),
        Row::new(
            format!("{what}: whole, through the guard, median"),
            guard.quantile(0.5),
            "ms",
            Goal::None,
        )
        .beside("bare socket", bare.quantile(0.5)),
    ]
}

/// All doors in each round, in random order. The first tenth is thrown away: it warms up.
fn turns(
    doors: &mut [Door; 3],
    rounds: usize,
    one: fn(&mut Door) -> Result<Vec<f64>>,
) -> Result<[Samples; 3]> {
    let mut samples = [(); 3].map(|()| Samples::default());
    let warm = rounds.div_ceil(10);
    for round in 0..rounds + warm {
        let mut order = [0, 1, 2];
        order.shuffle(&mut rand::rng());
        for which in order {
            let values = one(&mut doors[which])?;
            if round >= warm {
                samples[which].push(values);
            }
        }
    }
    Ok(samples)
}

/// A way to the engine.
struct Door {
    connection: Connection,
    small: Vec<u8>,
    stream: Vec<u8>,
}

impl Door {
    fn open(node: &Node, address: &Address, key: Option<&str>) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(node, address)?,
            small: chat(MODEL, key, r#","max_tokens":1"#),
            stream: chat(MODEL, key, &format!(r#","max_tokens":{TOKENS},"stream":true"#)),
        })
    }

    /// How long one took, in ms.
    fn small(&mut self) -> Result<Vec<f64>> {
        let start = Instant::now();
        let status = self.connection.exchange(&self.small, |_| {})?;
        let took = start.elapsed();
        ensure!(status == 200, "a small request was answered {status}");
        Ok(vec![took.as_secs_f64() * 1000.0])
    }

    /// How long each token was on its way, in ms.
    fn stream(&mut self) -> Result<Vec<f64>> {
        let mut text = Vec::new();
        let mut arrived = Vec::with_capacity(TOKENS);
        let status = self.connection.exchange(&self.stream, |piece| {
            arrived.push((text.len() + piece.len(), now_ns()));
            text.extend_from_slice(piece);
        })?;
        ensure!(status == 200, "a stream was answered {status}");
        let text = String::from_utf8_lossy(&text);
        let ways = on_the_way(&text, &arrived);
        ensure!(
            ways.len() >= TOKENS,
            "{} stamped tokens of {TOKENS}: {text}",
            ways.len()
        );
        Ok(ways)
    }
}

/// From each stamp in `text` to the arrival of its event's last byte, in ms. `arrived`: how much was there, and when.
fn on_the_way(text: &str, arrived: &[(usize, u64)]) -> Vec<f64> {
    let mut found = Vec::new();
    let mut end = 0;
    for event in text.split_inclusive("\n\n") {
        end += event.len();
        let stamp = event
            .split_once("\"stub_ns\":")
            .and_then(|(_, rest)| rest.split([',', '}']).next()?.parse::<u64>().ok());
        let there = arrived.iter().find(|(length, _)| *length >= end);
        if let (Some(stamp), Some((_, at))) = (stamp, there) {
            found.push(at.saturating_sub(stamp) as f64 / 1e6);
        }
    }
    found
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// Where the guard of a job is, and the key that it wants.
fn endpoint(site: &Site, job: u32) -> Result<(SocketAddr, String)> {
    let text = site
        .lab
        .login()
        .command("alice", ["sserve", "url", "--json", "--env", &job.to_string()])
        .run()?;
    let endpoint: serde_json::Value = serde_json::from_str(&text)?;
    let base = endpoint["base_url"].as_str().context("no base_url")?;
    let key = endpoint["key"].as_str().context("no key")?.to_owned();
    let host = base
        .split_once("://")
        .and_then(|(_, rest)| rest.split('/').next())
        .with_context(|| format!("{base} is no URL"))?;
    // Names are known in the node, not here.
    let address = site.node(WITH).inside(|| host.to_socket_addrs())?;
    let address = address?
        .next()
        .with_context(|| format!("{host} has no address"))?;
    Ok((address, key))
}

/// nginx as a careful admin would set it up for the same: the key asked for, nothing buffered, connections kept on both sides.
fn start_nginx(node: &Node, guard: SocketAddr, key: &str, socket: &Path) -> Result<(Background, SocketAddr)> {
    let conf = format!(
        r#"user root;
worker_processes 1;
daemon off;
pid /run/bench-nginx.pid;
error_log /var/log/bench-nginx.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000;
    client_body_temp_path /tmp/bench-nginx-body;
    proxy_temp_path /tmp/bench-nginx-proxy;
    fastcgi_temp_path /tmp/bench-nginx-f;
    uwsgi_temp_path /tmp/bench-nginx-u;
    scgi_temp_path /tmp/bench-nginx-s;
    upstream engine {{ server unix:{socket}; keepalive 16; keepalive_requests 1000000; }}
    server {{
        listen {NGINX};
        location / {{
            if ($http_authorization != "Bearer {key}") {{ return 401; }}
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Authorization "";
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"#,
        socket = socket.display()
    );
    // It holds the job's key.
    node.install_file("/etc/nginx/bench.conf", conf, 0o600)?;
    let log = "/var/log/bench-nginx.out";
    let nginx = node
        .command("root", ["nginx", "-c", "/etc/nginx/bench.conf"])
        .spawn(log)?;
    let at = SocketAddr::new(guard.ip(), NGINX);
    wait_for(Duration::from_secs(10), "nginx to listen", || {
        ensure!(nginx.is_running()?, "it ended: {}", node.tail(log, 5));
        Ok(Connection::open(node, &Address::Tcp(at)).ok().map(drop))
    })?;
    Ok((nginx, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_there_with_the_last_byte_of_its_event() {
        let text =
            "data: {\"stub_ns\":1000000}\n\ndata: {\"x\":1,\"stub_ns\":2000000,\"y\":2}\n\ndata: [DONE]\n\n";
        let first = text.find("\n\n").expect("an end") + 2;
        let arrived = [
            (first - 1, 1_500_000),
            (first + 3, 3_000_000),
            (text.len(), 9_000_000),
        ];
        assert_eq!(on_the_way(text, &arrived), [2.0, 7.0]);
    }
}
