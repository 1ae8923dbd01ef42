//! The gateway beside other proxies: the same requests to the same served model, straight to its guard, and through our gateway, nginx, smg, sglang-router,
//! vllm-router and LiteLLM. All in every round, in random order, each on a connection of its own that is kept.
//!
//! nginx routes by address alone: it is what passing on costs, not a router of models. All run on these cores, the client too.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use rand::seq::SliceRandom;
use serve_e2e::Site;
use serve_e2e::outside::{MASTER, Outside};
use serve_lab::{Background, wait_for};

use crate::bed::{Effort, GATEWAY, WITH, wait_idle};
use crate::http::{Address, Connection, chat};
use crate::report::{Goal, Row};
use crate::stats::{Estimate, Samples};

const MODEL: &str = "bench-fast";
const NGINX: u16 = 18_998;
/// Connections at once where requests are counted.
const CLIENTS: usize = 4;
/// Streams that are held open.
const STREAMS: usize = 1000;

/// One way to the model.
struct Arm {
    name: &'static str,
    address: SocketAddr,
    key: String,
    small: Samples,
    per_second: Samples,
    memory: f64,
}

/// Runs it.
pub fn measure(site: &Site, effort: Effort) -> Result<Vec<Row>> {
    let (node, login) = (site.node(WITH), site.lab.login());
    let job = site.sbatch(
        "alice",
        &["--serve-model=bench-fast", "-w", node.name()],
        "sserve hold",
    )?;
    job.wait_model("ready")?;
    let (url, key) = job.endpoint()?;
    let root = url.trim_end_matches("/v1").to_owned();
    let guard: SocketAddr = root
        .trim_start_matches("http://")
        .parse()
        .context("the guard's address")?;
    let folder = tempfile::tempdir()?;
    let models = format!(
        "model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n      api_base: {url}\n      api_key: {key}\n"
    );
    let nginx = start_nginx(site, guard, &key)?;
    let (smg, sglang, vllm) = (
        Outside::smg(site)?,
        Outside::router(site)?,
        Outside::vllm_router(site)?,
    );
    for router in [&smg, &sglang, &vllm] {
        router.add_worker(&root, MODEL, &key)?;
    }
    let litellm = Outside::litellm_with(site, folder.path(), &models, false)?;
    let at = |port: u16| -> Result<SocketAddr> { Ok(format!("{}:{port}", login.address()).parse()?) };
    let arm = |name, address, key: &str| Arm {
        name,
        address,
        key: key.to_owned(),
        small: Samples::default(),
        per_second: Samples::default(),
        memory: 0.0,
    };
    let mut arms = vec![
        arm("direct", guard, &key),
        arm("gateway", GATEWAY.parse()?, MASTER),
        arm("nginx", at(NGINX)?, MASTER),
        arm("smg", at(smg.port)?, MASTER),
        arm("sglang-router", at(sglang.port)?, MASTER),
        arm("vllm-router", at(vllm.port)?, MASTER),
        arm("LiteLLM", at(litellm.port)?, MASTER),
    ];
    latency(site, &mut arms, effort)?;
    throughput(site, &mut arms, effort)?;
    let gateway_pid = site.gateway_process()?.pid;
    for arm in &mut arms {
        arm.memory = match arm.name {
            "gateway" => resident(gateway_pid)?,
            "nginx" => resident(nginx.process().pid)?,
            "smg" => smg.memory()?,
            "sglang-router" => sglang.memory()?,
            "vllm-router" => vllm.memory()?,
            "LiteLLM" => litellm.memory()?,
            _ => 0.0,
        };
    }
    let mut rows = rows(&arms);
    drop((smg, sglang, vllm, litellm));
    rows.extend(bodies(site, &arms, effort)?);
    rows.extend(streams(site, &arms, gateway_pid, effort)?);
    nginx.signal(Signal::SIGTERM)?;
    nginx.wait(Duration::from_secs(10))?;
    job.cancel()?;
    wait_idle(node)?;
    Ok(rows)
}

fn rows(arms: &[Arm]) -> Vec<Row> {
    let (direct, gateway, rivals) = (&arms[0], &arms[1], &arms[2..]);
    let mut rows = Vec::new();
    for rival in rivals {
        for (q, name) in [(0.5, "median"), (0.99, "p99")] {
            rows.push(
                Row::new(
                    format!("small request: added by the gateway, {name}"),
                    gateway.small.added(&direct.small, q),
                    "ms",
                    Goal::None,
                )
                .beside(rival.name, rival.small.added(&direct.small, q)),
            );
        }
    }
    for rival in std::iter::once(direct).chain(rivals) {
        rows.push(
            Row::new(
                format!("requests a second, {CLIENTS} clients"),
                gateway.per_second.quantile(0.5),
                "1/s",
                Goal::None,
            )
            .beside(rival.name, rival.per_second.quantile(0.5)),
        );
    }
    for rival in rivals {
        rows.push(
            Row::read("resident memory after that", gateway.memory, "MiB", Goal::None)
                .beside(rival.name, read(rival.memory)),
        );
    }
    rows
}

fn read(value: f64) -> Estimate {
    Estimate {
        value,
        interval: None,
    }
}

/// All in each round, in random order. The first tenth is thrown away: it warms up.
fn latency(site: &Site, arms: &mut [Arm], effort: Effort) -> Result<()> {
    let login = site.lab.login();
    let rounds = effort.rounds(1000, 100);
    let mut connections = Vec::new();
    for arm in arms.iter() {
        let request = chat(MODEL, Some(&arm.key), r#","max_tokens":1"#);
        connections.push((Connection::open(login, &Address::Tcp(arm.address))?, request));
    }
    for round in 0..rounds + rounds.div_ceil(10) {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        order.shuffle(&mut rand::rng());
        for which in order {
            let (connection, request) = &mut connections[which];
            let start = Instant::now();
            let status = connection.exchange(request, |_| {})?;
            let took = start.elapsed();
            ensure!(status == 200, "{} answered {status}", arms[which].name);
            if round >= rounds.div_ceil(10) {
                arms[which].small.push(vec![took.as_secs_f64() * 1000.0]);
            }
        }
    }
    Ok(())
}

fn throughput(site: &Site, arms: &mut [Arm], effort: Effort) -> Result<()> {
    let login = site.lab.login();
    let slice = Duration::from_millis(if effort.quick { 300 } else { 1000 });
    for _ in 0..effort.rounds(7, 3) {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        order.shuffle(&mut rand::rng());
        for which in order {
            let arm = &arms[which];
            let request = chat(MODEL, Some(&arm.key), r#","max_tokens":1"#);
            let mut clients = (0..CLIENTS)
                .map(|_| Connection::open(login, &Address::Tcp(arm.address)))
                .collect::<Result<Vec<_>>>()?;
            let stop = AtomicBool::new(false);
            let begun = Instant::now();
            let counts: Vec<Result<usize>> = std::thread::scope(|scope| {
                let (stop, request) = (&stop, &request);
                let asking: Vec<_> = clients
                    .iter_mut()
                    .map(|client| {
                        scope.spawn(move || {
                            let mut count = 0;
                            while !stop.load(Ordering::Relaxed) {
                                let status = client.exchange(request, |_| {})?;
                                ensure!(status == 200, "answered {status}");
                                count += 1;
                            }
                            Ok(count)
                        })
                    })
                    .collect();
                std::thread::sleep(slice);
                stop.store(true, Ordering::Relaxed);
                asking
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a client broke")))
                    .collect()
            });
            let total = counts
                .into_iter()
                .sum::<Result<usize>>()
                .with_context(|| arm.name)?;
            let rate = total as f64 / begun.elapsed().as_secs_f64();
            arms[which].per_second.push(vec![rate]);
        }
    }
    Ok(())
}

/// Long questions, straight and through the gateway.
fn bodies(site: &Site, arms: &[Arm], effort: Effort) -> Result<Vec<Row>> {
    let login = site.lab.login();
    let mut rows = Vec::new();
    for (bytes, name, rounds) in [
        (1 << 20, "1 MiB", effort.rounds(60, 10)),
        (50_000_000, "50 MB", effort.rounds(9, 3)),
    ] {
        let padding = format!(r#","max_tokens":1,"user":"{}""#, "x".repeat(bytes));
        let mut samples = [(); 3].map(|()| Samples::default());
        for _ in 0..rounds {
            for (which, arm) in arms[..3].iter().enumerate() {
                let request = chat(MODEL, Some(&arm.key), &padding);
                let mut connection = Connection::open(login, &Address::Tcp(arm.address))?;
                let start = Instant::now();
                let status = connection.exchange(&request, |_| {})?;
                ensure!(status == 200, "{} answered {status} to {name}", arm.name);
                samples[which].push(vec![start.elapsed().as_secs_f64() * 1000.0]);
            }
        }
        for (which, rival) in [(0, "direct"), (2, "nginx")] {
            rows.push(
                Row::new(
                    format!("a question of {name}, through the gateway"),
                    samples[1].quantile(0.5),
                    "ms",
                    Goal::None,
                )
                .beside(rival, samples[which].quantile(0.5)),
            );
        }
    }
    Ok(rows)
}

/// Many streams at once through the gateway: all of them are served to the end, and what that takes.
fn streams(site: &Site, arms: &[Arm], pid: i32, effort: Effort) -> Result<Vec<Row>> {
    let login = site.lab.login();
    let count = effort.rounds(STREAMS, 100);
    let arm = &arms[1];
    let before = resident(pid)?;
    // 3 ms a token: all are open at the same time.
    let request = chat(MODEL, Some(&arm.key), r#","max_tokens":2000,"stream":true"#);
    let connections = (0..count)
        .map(|_| Connection::open(login, &Address::Tcp(arm.address)))
        .collect::<Result<Vec<_>>>()?;
    let mut most = before;
    let done: Result<usize> = std::thread::scope(|scope| {
        let request = &request;
        let asking: Vec<_> = connections
            .into_iter()
            .map(|mut connection| scope.spawn(move || connection.exchange(request, |_| {})))
            .collect();
        while !asking.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            most = most.max(resident(pid)?);
            std::thread::sleep(Duration::from_millis(100));
        }
        let answers = asking
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a client broke")));
        Ok(answers.filter(|answer| matches!(answer, Ok(200))).count())
    });
    Ok(vec![
        Row::read(
            format!("{count} streams at once through the gateway: whole"),
            done? as f64,
            "streams",
            Goal::None,
        ),
        Row::read(
            format!("{count} streams at once: the gateway's memory beyond"),
            (most - before) * 1024.0 / count as f64,
            "KiB a stream",
            Goal::None,
        ),
    ])
}

/// In MiB.
pub fn resident(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    Ok(kib / 1024.0)
}

/// nginx with one backend, nothing buffered, connections kept on both sides.
fn start_nginx(site: &Site, guard: SocketAddr, key: &str) -> Result<Background> {
    let login = site.lab.login();
    let conf = format!(
        r#"user root;
worker_processes 2;
daemon off;
pid /run/bench-gateway-nginx.pid;
error_log /var/log/bench-gateway-nginx.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000;
    client_max_body_size 64m;
    client_body_temp_path /tmp/bench-gateway-body;
    proxy_temp_path /tmp/bench-gateway-proxy;
    fastcgi_temp_path /tmp/bench-gateway-f;
    uwsgi_temp_path /tmp/bench-gateway-u;
    scgi_temp_path /tmp/bench-gateway-s;
    upstream model {{ server {guard}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen {NGINX};
        location / {{
            proxy_pass http://model;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Authorization "Bearer {key}";
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"#
    );
    // It holds the job's key.
    login.install_file("/etc/nginx/bench-gateway.conf", conf, 0o600)?;
    let log = "/var/log/bench-gateway-nginx.out";
    let nginx = login
        .command("root", ["nginx", "-c", "/etc/nginx/bench-gateway.conf"])
        .spawn(log)?;
    let at: SocketAddr = format!("{}:{NGINX}", login.address()).parse()?;
    wait_for(Duration::from_secs(10), "nginx to listen", || {
        ensure!(nginx.is_running()?, "it ended: {}", login.tail(log, 5));
        Ok(Connection::open(login, &Address::Tcp(at)).ok().map(drop))
    })?;
    Ok(nginx)
}
