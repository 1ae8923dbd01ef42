//! A real proxy as a process, and what a client gets from it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slurm_serve::catalog::push::{Entry, Kept, Push, Settings, Slurm};

const START: Duration = Duration::from_secs(90);

/// A proxy that runs until it is dropped.
pub struct Proxy {
    pub port: u16,
    start: Box<dyn Fn(u16) -> Command + Send + Sync>,
    health: &'static str,
    child: Option<Child>,
}

/// Where `tests/proxies/install.sh` puts one; it is installed if it is not there.
pub fn home(name: &str) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/proxies/install.sh");
    let done = Command::new(script)
        .arg(name)
        .status()
        .expect("tests/proxies/install.sh runs");
    assert!(done.success(), "{script} {name} failed");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    cache.join("slurm-serve/proxies").join(name)
}

/// Free a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Proxy {
    /// Starts it, and waits until `health` is answered.
    pub async fn start(health: &'static str, start: impl Fn(u16) -> Command + Send + Sync + 'static) -> Self {
        let mut this = Self {
            port: free_port(),
            start: Box::new(start),
            health,
            child: None,
        };
        this.up().await;
        this
    }

    pub async fn up(&mut self) {
        let mut command = (self.start)(self.port);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let loud = std::env::var_os("PROXY_LOG").is_some();
        command.stderr(if loud { Stdio::inherit() } else { Stdio::null() });
        if loud {
            command.stdout(Stdio::inherit());
        }
        self.child = Some(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")));
        let (client, url) = (client(), self.url(self.health));
        until("the proxy to answer", START, async || {
            client
                .get(&url)
                .send()
                .await
                .is_ok_and(|answer| answer.status().as_u16() < 500)
        })
        .await;
    }

    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Status, and what the model said.
    pub async fn chat(&self, model: &str, key: &str) -> (u16, String) {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] });
        let request = client()
            .post(self.url("/v1/chat/completions"))
            .bearer_auth(key)
            .json(&body);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let said = serde_json::from_str::<Value>(&text).ok();
        let said = said.and_then(|it| it["choices"][0]["message"]["content"].as_str().map(str::to_owned));
        (status, said.unwrap_or(text))
    }

    pub async fn get(&self, path: &str, key: &str) -> Value {
        let answer = client()
            .get(self.url(path))
            .bearer_auth(key)
            .send()
            .await
            .unwrap();
        answer.json().await.unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.down();
    }
}

pub fn client() -> reqwest::Client {
    slurm_serve::http_client::builder()
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap()
}

/// Waits for a condition, not for a time.
pub async fn until(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let met = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(limit, met).await.is_err() {
        panic!("gave up after {limit:?} waiting for {what}");
    }
}

/// A keeper of one catalog, and where it remembers.
pub struct Keeper {
    pub push: Push,
    pub folder: tempfile::TempDir,
    settings: Settings,
}

/// Says nothing, so that nothing is swept.
#[derive(Debug)]
pub struct NoSlurm;

#[tonic::async_trait]
impl Slurm for NoSlurm {
    async fn is_gone(&self, _job_id: u32, _node: &str) -> Result<bool, String> {
        Err("there is none".into())
    }

    async fn answers(&self, _node: &str, _url: &str) -> bool {
        true
    }
}

/// Long enough for a machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Keeper {
    pub fn of(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let push = Push::start(
            std::slice::from_ref(&settings),
            settings.kept_by,
            folder.path(),
            Arc::new(NoSlurm),
        )
        .unwrap();
        push.know("here");
        Self {
            push,
            folder,
            settings,
        }
    }

    /// The same catalog in another life.
    pub fn again(self) -> Self {
        let Self {
            push,
            folder,
            settings,
        } = self;
        drop(push);
        let push = Push::start(
            std::slice::from_ref(&settings),
            settings.kept_by,
            folder.path(),
            Arc::new(NoSlurm),
        )
        .unwrap();
        push.know("here");
        Self {
            push,
            folder,
            settings,
        }
    }

    /// Tells what is there on node n1, and waits until the catalog agrees.
    pub async fn tell(&self, entries: &[&Entry]) {
        self.tell_of(entries, &["n1"]).await;
    }

    pub async fn tell_of(&self, entries: &[&Entry], nodes: &[&str]) {
        let entries = entries.iter().map(|entry| (*entry).clone()).collect();
        let revision = self
            .push
            .tell(entries, nodes.iter().map(|node| (*node).to_owned()));
        self.push.settled(revision, PATIENCE).await;
        let status = self.push.status();
        assert!(status[0].agrees, "{status:?}");
    }

    /// Waits until the catalog is told of trouble that has these words, and returns the line.
    pub async fn trouble(&self, words: &[&str]) -> String {
        let mut last = String::new();
        until(&format!("trouble with {words:?}"), PATIENCE, async || {
            last = self.push.status()[0].trouble.clone();
            words.iter().all(|word| last.contains(word))
        })
        .await;
        assert!(!last.contains('\n'), "{last:?}");
        last
    }
}

/// Settings of a catalog for tests: it is looked at often.
pub fn settings(toml: &str) -> Settings {
    let settings: Settings = toml::from_str(toml).unwrap();
    settings.check().unwrap();
    Settings {
        check_every: Duration::from_millis(300),
        kept_by: if settings.kind == slurm_serve::catalog::push::settings::Kind::File {
            Kept::Gateway
        } else {
            Kept::Agent
        },
        ..settings
    }
}
