//! The clients of docs/grpc.md, as they stand there, against the agent's port with TLS.
//!
//! They need packages from PyPI, which `.ci/grpc-clients` puts into the cache; where that has not been run they are skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use slurm_serve_proto::v1::{Model, ModelState};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{ChildStdout, Command};

use crate::pki::write_private;
use crate::site::{KEY, PROXY, Site, in_time, model};

const PAGE: &str = include_str!("../../../docs/grpc.md");

/// What stands between "```HEAD" and "```".
fn block(head: &str) -> &'static str {
    let begin = format!("```{head}\n");
    let (_, rest) = PAGE.split_once(&begin).expect("a block of that name");
    rest.split_once("\n```").expect("its end").0
}

/// The folder with the page's programs; none if they are not installed.
fn programs() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let cache = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = cache("SLURM_SERVE_CACHE")
        .or_else(|| Some(cache("XDG_CACHE_HOME")?.join("slurm-serve")))
        .or_else(|| Some(cache("HOME")?.join(".cache/slurm-serve")))?;
    let installed = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let found = installed
        .map(|entry| entry.path())
        .find(|path| path.join("bin/grpcurl").exists() && path.join("done").exists());
    if found.is_none() {
        eprintln!(
            "skipped: the clients of docs/grpc.md are not installed; run {}/.ci/grpc-clients",
            root.display()
        );
    }
    Some(found?.join("bin"))
}

/// A shell in `folder` that finds the page's programs, and `proto/` beside it.
fn shell(programs: &Path, folder: &Path, script: &str) -> Command {
    let link = folder.join("proto");
    let proto = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("proto");
    if !link.exists() {
        std::os::unix::fs::symlink(proto, link).unwrap();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-euc", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .kill_on_drop(true);
    shell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_the_shells_calls_work() {
    let Some(programs) = programs() else { return };
    let site = Site::start().await;
    let run = shell(&programs, site.folder.path(), block("sh shell"))
        .env("AGENT", format!("localhost:{}", site.tls_port))
        .env("CA", site.path("ca.pem"))
        .env("TOKEN", PROXY)
        .output();
    let output = in_time("the calls", run).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for word in [
        "slurm_serve.v1.Catalog\n",
        "grpc.health.v1.Health\n",
        "SERVING",
        "\"tiny\"",
        "agentVersion",
        "\"snapshot\"",
        "\"powerWatts\"",
        KEY,
    ] {
        assert!(said.contains(word), "{word} in {said}");
    }
}

/// The agent has a runtime of its own, so that the end of it is the end of every connection.
#[test]
fn page_the_client_follows_acknowledges_and_outlives_an_agent() {
    let Some(programs) = programs() else { return };
    let agents = runtime();
    let site = agents.block_on(Site::with(|config| {
        config.agent.heartbeat = Duration::from_millis(500);
        config.agent.lease = Duration::from_secs(2);
    }));
    runtime().block_on(async {
        let guard = Guard::start().await;
        let tiny = Model {
            base_url: format!("http://{}/v1", guard.address),
            ..model()
        };
        site.hub.set(tiny.clone());

        write_private(&site.path("token"), PROXY);
        std::fs::write(site.path("watch.py"), block("python watch.py")).unwrap();
        let script = format!("{}\nexec python3 watch.py \"$@\"", block("sh stubs"));
        let mut client = shell(&programs, site.folder.path(), &script);
        client.args([
            "client",
            &format!("localhost:{}", site.tls_port),
            "ca.pem",
            "token",
        ]);
        let mut client = client.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
        let shown = |names: &[&str]| {
            let pairs = names.iter().map(|name| [*name, tiny.base_url.as_str()]);
            serde_json::Value::from_iter(pairs.map(|pair| serde_json::json!(pair)))
        };
        until(&mut said, &shown(&["tiny"])).await;

        let other = Model {
            name: "big".into(),
            generation: "8.0.1-b".into(),
            ..tiny.clone()
        };
        site.hub.set(other.clone());
        until(&mut said, &shown(&["big", "tiny"])).await;
        let leaving = site.hub.set(Model {
            state: ModelState::Draining.into(),
            ..other
        });
        in_time("its acknowledgement", site.hub.released(leaving)).await;
        until(&mut said, &shown(&["tiny"])).await;

        // For two leases and more the guard says itself that it is ready, and nothing changes.
        agents.shutdown_background();
        in_time("the guard to be asked", async {
            while guard.asked.load(Ordering::Relaxed) < 12 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        guard.is_ending.store(true, Ordering::Relaxed);
        let next = in_time("the end", said.next_line()).await.unwrap();
        assert_eq!(
            next.as_deref(),
            Some("[]"),
            "it was believed until it said otherwise"
        );
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Reads what the client says until it is this.
async fn until(said: &mut Lines<BufReader<ChildStdout>>, wanted: &serde_json::Value) {
    let reading = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if serde_json::from_str::<serde_json::Value>(&line).unwrap() == *wanted {
                return;
            }
        }
        panic!("the client has ended");
    };
    in_time(&format!("{wanted}"), reading).await;
}

/// A guard that says of itself what it is told to.
struct Guard {
    address: std::net::SocketAddr,
    asked: Arc<AtomicU32>,
    is_ending: Arc<AtomicBool>,
}

impl Guard {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, is_ending) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ending) = (asked.clone(), is_ending.clone());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                assert!(request.starts_with("GET /slurm-serve/v1/status "), "{request}");
                assert!(request.contains(&format!("Bearer {KEY}")), "{request}");
                count.fetch_add(1, Ordering::Relaxed);
                let state = if ending.load(Ordering::Relaxed) {
                    "draining"
                } else {
                    "ready"
                };
                let body = serde_json::json!({"model": "tiny", "generation": "7.0.1-a", "state": state, "in_flight": 0}).to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self {
            address,
            asked,
            is_ending,
        }
    }
}
