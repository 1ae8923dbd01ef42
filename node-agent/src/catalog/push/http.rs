//! Asking a catalog over HTTP: bounded in time and size, and never believed to be what it should be.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use super::settings::Settings;

/// An answer longer than this is none. LiteLLM lists all its models in one.
const LONGEST: usize = 64 << 20;
/// Of an answer that is no JSON, so much is shown.
const SHOWN: usize = 200;

/// Why a catalog does not agree. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// No answer.
    #[error("{0}")]
    Away(String),
    /// The answer is not what it should be.
    #[error("{0}")]
    Nonsense(String),
    /// It took a change and does not show it.
    #[error("{0}")]
    Disagrees(String),
    /// Something on our side.
    #[error("{0}")]
    Own(String),
}

/// One catalog's address, and what lets us in.
#[derive(Debug)]
pub struct Http {
    client: reqwest::Client,
    base: String,
    key_file: PathBuf,
    timeout: Duration,
}

/// An answer that came whole.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body, as text.
    pub text: String,
    /// `POST /model/new`.
    what: String,
}

impl Http {
    /// The error is one line.
    pub fn open(settings: &Settings) -> Result<Self, String> {
        let base = settings.url.trim_end_matches('/').to_owned();
        if !base.is_empty() {
            let uri: http::Uri = base.parse().map_err(|e| format!("url {base:?}: {e}"))?;
            if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
                return Err(format!(
                    "url {base:?}: write http://HOST:PORT or https://HOST:PORT"
                ));
            }
        }
        let mut builder = crate::http_client::builder()
            .connect_timeout(settings.timeout)
            .timeout(settings.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(Duration::from_secs(30));
        if settings.ca_file != Path::new("") {
            let shown = settings.ca_file.display();
            let text = std::fs::read(&settings.ca_file).map_err(|e| format!("ca_file {shown}: {e}"))?;
            let roots =
                reqwest::Certificate::from_pem_bundle(&text).map_err(|e| format!("ca_file {shown}: {e}"))?;
            builder = builder.tls_certs_merge(roots);
        }
        let client = builder
            .build()
            .map_err(|e| format!("no HTTP client: {}", chain(&e)))?;
        let this = Self {
            client,
            base,
            key_file: settings.key_file.clone(),
            timeout: settings.timeout,
        };
        this.key().map_err(|e| e.to_string())?;
        Ok(this)
    }

    /// What the key file says now; empty if there is none. It is read for each request, so that it can be rotated.
    pub fn key(&self) -> Result<String, Trouble> {
        if self.key_file == Path::new("") {
            return Ok(String::new());
        }
        read_key(&self.key_file).map_err(Trouble::Own)
    }

    /// Asks below the catalog's address.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Trouble> {
        let what = format!("{method} {path}");
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        let key = self.key()?;
        if !key.is_empty() {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| Trouble::Own(format!("{}: that can't be a key", self.key_file.display())))?;
            value.set_sensitive(true);
            request = request.header(http::header::AUTHORIZATION, value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        self.send(what, request).await
    }

    /// Sends what was made with [`Http::request`].
    pub async fn send(&self, what: String, request: reqwest::RequestBuilder) -> Result<Answer, Trouble> {
        let away = |e: &reqwest::Error| match e.is_timeout() {
            true => Trouble::Away(format!(
                "{what}: no answer within {} s",
                self.timeout.as_secs_f64()
            )),
            false => Trouble::Away(format!("{what}: {}", chain(e))),
        };
        let answer = request.send().await.map_err(|e| away(&e))?;
        let status = answer.status();
        let mut body = Vec::new();
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|e| away(&e))?;
            if body.len() + piece.len() > LONGEST {
                return Err(Trouble::Nonsense(format!(
                    "{what}: the answer is longer than {} MiB",
                    LONGEST >> 20
                )));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer {
            status,
            text: String::from_utf8_lossy(&body).into_owned(),
            what,
        })
    }

    /// For an address of its own.
    pub fn request(&self, method: Method, url: &str) -> reqwest::RequestBuilder {
        self.client.request(method, url)
    }
}

impl Answer {
    /// The JSON of a good answer.
    pub fn json(self) -> Result<Value, Trouble> {
        let this = self.good()?;
        serde_json::from_str(&this.text).map_err(|_| this.nonsense("no JSON"))
    }

    /// An answer with 2xx.
    pub fn good(self) -> Result<Self, Trouble> {
        match self.status {
            status if status.is_success() => Ok(self),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.nonsense("it wants another key (key_file)"))
            }
            _ => Err(self.nonsense("")),
        }
    }

    /// As trouble.
    pub fn nonsense(&self, why: &str) -> Trouble {
        let said: String = self
            .text
            .chars()
            .filter(|c| !c.is_control())
            .take(SHOWN)
            .collect();
        let why = if why.is_empty() {
            String::new()
        } else {
            format!("{why}: ")
        };
        Trouble::Nonsense(format!("{} answers {}, {why}{said}", self.what, self.status))
    }
}

/// One line; others must not be able to read the file.
fn read_key(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let about = std::fs::metadata(file).map_err(|e| format!("key_file {shown}: {e}"))?;
    if about.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "key_file {shown} can be read by others; chmod 600 {shown}"
        ));
    }
    let text = std::fs::read_to_string(file).map_err(|e| format!("key_file {shown}: {e}"))?;
    match text.trim() {
        "" => Err(format!("key_file {shown} is empty")),
        key => Ok(key.to_owned()),
    }
}

/// reqwest tells the reason at the end of a chain.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        let next = source.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        at = source.source();
    }
    text
}
