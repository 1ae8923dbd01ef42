//! What is noted of requests: ids, the log's lines, metrics; shares of keys; a reload; the status page.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use slurm_serve_proto::v1::ModelState::{Failed, Loading, Ready};

use crate::fake_agent::{FakeAgent, model};
use crate::fake_guard::{FakeGuard, Mode};
use crate::harness::{Gateway, LONG, until};

fn write(path: &Path, text: &str) {
    let beside = path.with_extension("next");
    let mut file = std::fs::OpenOptions::new();
    let mut file = file
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    std::fs::rename(beside, path).unwrap();
}

/// A log that can be read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// What all tests of this program log: a log of one test's own would miss what another has made tracing take for unwanted.
    fn of_all() -> &'static Self {
        static LOG: std::sync::OnceLock<Log> = std::sync::OnceLock::new();
        LOG.get_or_init(|| {
            let this = Self::default();
            let writer = this.clone();
            let log = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone());
            log.init();
            this
        })
    }

    fn access(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        text.lines()
            .filter(|line| line.contains(" access: "))
            .map(str::to_owned)
            .collect()
    }
}

#[tokio::test]
async fn a_request_has_one_id_everywhere_and_one_line_without_what_was_said() {
    let log = Log::of_all();
    let guard = FakeGuard::start(Mode::Answer).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guard.base_url)]);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    write(&keys, "key-nobody-sees name=ada\n");
    let gateway = Gateway::with(&[&agent], |config| config.gateway.key_file = keys.clone()).await;
    until("the model", async || {
        let asked = gateway
            .client
            .get(gateway.url("/v1/models"))
            .bearer_auth("key-nobody-sees")
            .send()
            .await
            .unwrap();
        asked.text().await.unwrap().contains("tiny")
    })
    .await;
    let body = serde_json::json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a prompt nobody sees" }] });
    let ask = |id: &str| {
        gateway
            .client
            .post(gateway.url("/v1/chat/completions"))
            .bearer_auth("key-nobody-sees")
            .header("x-request-id", id)
            .json(&body)
    };
    let answer = ask("mine-7").send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "mine-7");
    answer.text().await.unwrap();
    assert_eq!(guard.seen()[0].headers["x-request-id"], "mine-7");
    // Errors of our own have one too; one that is not fit is replaced.
    let refused = gateway
        .client
        .get(gateway.url("/v1/models"))
        .header("x-request-id", "two words")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["x-request-id"].len()),
        (401, 32)
    );
    refused.text().await.unwrap();
    let line_with = |part: &str| log.access().into_iter().find(|line| line.contains(part));
    until("both lines", async || {
        line_with("mine-7").is_some() && line_with("status=401").is_some()
    })
    .await;
    let line = line_with("mine-7").unwrap();
    for part in [
        "id=\"mine-7\"",
        "key=\"ada\"",
        "model=\"tiny\"",
        "node=\"n1\"",
        "status=200",
        "tries=1",
        "whole=true",
        "first_ms=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let all = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        !all.contains("nobody sees") && !all.contains("key-nobody-sees"),
        "{all}"
    );
}

#[tokio::test]
async fn metrics_say_what_was_asked_and_what_is_known() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let models = vec![
        model("tiny", "a", Ready, &guard.base_url),
        model("big", "b", Loading, ""),
    ];
    let agent = FakeAgent::start("n1", LONG, models);
    let gateway = Gateway::start(&[&agent]).await;
    for _ in 0..3 {
        assert_eq!(gateway.ask("tiny").await.0, 200);
    }
    assert_eq!(gateway.ask("no\"such").await.0, 404);
    let mut text = String::new();
    until("all to be counted", async || {
        let answer = gateway.client.get(gateway.url("/metrics")).send().await.unwrap();
        assert!(
            answer.headers()["content-type"]
                .to_str()
                .unwrap()
                .starts_with("application/openmetrics-text")
        );
        text = answer.text().await.unwrap();
        text.contains("requests_total{model=\"tiny\",status=\"200\"} 3")
    })
    .await;
    for line in [
        "slurm_serve_gateway_agents{state=\"connected\"} 1",
        "slurm_serve_gateway_models{state=\"loading\"} 1",
        "slurm_serve_gateway_models{state=\"ready\"} 1",
        "slurm_serve_gateway_first_byte_seconds_count{model=\"tiny\"} 3",
        "slurm_serve_gateway_replica_circuit_open{model=\"tiny\",node=\"n1\",job=\"",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("such"), "what clients write is no label: {text}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn metrics_want_a_key_where_there_are_keys_unless_they_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    write(&keys, "k3y\n");
    for (open, status) in [(false, 401), (true, 200)] {
        let gateway = Gateway::with(&[], |config| {
            config.gateway.key_file = keys.clone();
            config.gateway.open_metrics = open;
            config.gateway.agents = vec!["n1=127.0.0.1:1".into()];
        })
        .await;
        let answer = gateway.client.get(gateway.url("/metrics")).send().await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test]
async fn a_key_that_has_had_its_share_is_told_when_to_come_back() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let agent = FakeAgent::start("n1", LONG, vec![model("tiny", "a", Ready, &guard.base_url)]);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    write(&keys, "slow requests_per_minute=6\nquick\n");
    let gateway = Gateway::with(&[&agent], |config| config.gateway.key_file = keys.clone()).await;
    let ask = async |key: &str| gateway.chat("tiny").bearer_auth(key).send().await.unwrap();
    until("the model", async || ask("quick").await.status() == 200).await;
    assert_eq!(ask("slow").await.status(), 200);
    let refused = ask("slow").await;
    assert_eq!(refused.status(), 429);
    let seconds: u32 = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=10).contains(&seconds));
    let said: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(said["error"]["code"], "rate_limit_exceeded");
    assert_eq!(ask("quick").await.status(), 200);
}

#[tokio::test]
async fn a_reload_takes_over_agents_and_keys_and_a_bad_one_changes_nothing() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let (one, two) = (
        FakeAgent::start("n1", LONG, vec![model("one", "a", Ready, &guard.base_url)]),
        FakeAgent::start("n2", LONG, vec![model("two", "b", Ready, &guard.base_url)]),
    );
    let gateway = Gateway::start(&[&one]).await;
    gateway.until_names(&["one"]).await;
    gateway
        .settings
        .send_modify(|config| config.gateway.agents.push("nonsense".into()));
    gateway
        .settings
        .send_modify(|config| config.gateway.key_file = PathBuf::from("/no/such/file"));
    gateway.settings.send_modify(|config| {
        config.gateway.agents = vec![two.address()];
    });
    // The file of keys is still a bad one.
    gateway.until_names(&["one"]).await;
    gateway
        .settings
        .send_modify(|config| config.gateway.key_file = PathBuf::new());
    gateway.until_names(&["two"]).await;
}

/// The page as a browser without a window sees it after its script has run.
fn browse(url: &str, more: &[&str]) -> Option<String> {
    let browser = ["chromium", "chromium-browser", "google-chrome"];
    let browser = browser
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())?;
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=4000",
        ])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .args(more)
        .arg(url)
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_shows_models_nodes_and_reasons_in_a_real_browser() {
    let guard = FakeGuard::start(Mode::Answer).await;
    let mut failed = model("broken", "c", Failed, "");
    failed.ending = Some(slurm_serve_proto::v1::Ending {
        text: "not enough memory on GPU 0 <img src=x onerror=alert(1)>".into(),
        ..Default::default()
    });
    let mut ready = model("gpt-oss-120b", "a", Ready, &guard.base_url);
    (ready.aliases, ready.requests, ready.in_flight) = (vec!["gpt".into()], 1234, 3);
    let models = vec![ready, model("ada/tiny", "b", Loading, ""), failed];
    let (agent, mut gone) = (
        FakeAgent::start("gpu01", LONG, models),
        FakeAgent::start("gpu02", LONG, vec![]),
    );
    let gateway = Gateway::start(&[&agent, &gone]).await;
    gone.kill();
    gateway.until_agent("gpu02", "silent").await;
    let (url, shot) = (gateway.url("/"), std::env::var("STATUS_PAGE_SHOT").ok());
    let dom = tokio::task::spawn_blocking(move || {
        if let Some(folder) = shot {
            for (name, size) in [("phone", "390,844"), ("desktop", "1200,700")] {
                let (shot, size) = (
                    format!("--screenshot={folder}/{name}.png"),
                    format!("--window-size={size}"),
                );
                browse(&url, &[&shot, &size]);
            }
        }
        browse(&url, &["--dump-dom"])
    })
    .await
    .unwrap();
    let Some(dom) = dom else {
        eprintln!("skipped: no chromium here");
        return;
    };
    for shown in [
        "gpt-oss-120b",
        "also gpt",
        "3 requests now, 1234 so far",
        "ada/tiny",
        "loading for",
        "broken",
        "not enough memory on GPU 0",
        "gpu02 is silent",
        "1 of 3 ready, 1 of 2",
    ] {
        assert!(dom.contains(shown), "{shown}\n{dom}");
    }
    assert!(
        dom.contains("&lt;img src=x") && !dom.contains("<img"),
        "text stays text"
    );
}
