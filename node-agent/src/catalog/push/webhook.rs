//! A proxy of the site's own, told by HTTP requests that the admin writes down: no code.
//!
//! Texts are templates (minijinja): `{{ name }}`, and in a JSON body `{{ name|tojson }}`. What a webhook was told is remembered in a
//! journal, because it can't be asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};
use minijinja::{Environment, UndefinedBehavior};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::Foreign;
use super::entry::{Entry, Row};
use super::http::{Answer, Http, Trouble};
use super::journal::Journal;
use super::plan::Held;
use super::settings::Settings;

/// One request, as the configuration has it. All but `method` and what is expected are templates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // documented in docs/proxies.md, once
pub struct Call {
    #[serde(default = "post")]
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
    #[serde(default)]
    pub expect_status: Vec<u16>,
    #[serde(default)]
    pub expect_body: String,
}

fn post() -> String {
    "POST".into()
}

/// What of an entry a template may name.
#[derive(Serialize)]
struct Values<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    id: &'a str,
    name: &'a str,
    key: &'a str,
    secret: String,
}

/// The webhook.
#[derive(Debug)]
pub struct Webhook {
    http: Http,
    journal: Journal,
    register: Prepared,
    deregister: Prepared,
    heartbeat: Option<Prepared>,
}

#[derive(Debug)]
struct Prepared {
    verb: &'static str,
    call: Call,
    method: Method,
    expect_body: Option<Regex>,
    templates: Environment<'static>,
}

impl Webhook {
    /// The error is one line.
    pub fn open(settings: &Settings, state_dir: &Path) -> Result<Self, String> {
        let prepare =
            |verb, call: &Option<Call>| call.as_ref().map(|call| Prepared::new(verb, call)).transpose();
        let this = Self {
            http: Http::open(settings)?,
            register: prepare("register", &settings.register)?.ok_or("`register` is missing")?,
            deregister: prepare("deregister", &settings.deregister)?.ok_or("`deregister` is missing")?,
            heartbeat: prepare("heartbeat", &settings.heartbeat)?,
            journal: Journal::open(state_dir, &settings.name)?,
        };
        // A name that no template may use is found now, not with the first model.
        let sample = Row::of(&Arc::new(Entry::default()));
        for call in [
            Some(&this.register),
            Some(&this.deregister),
            this.heartbeat.as_ref(),
        ]
        .into_iter()
        .flatten()
        {
            let _ = call
                .request(&this.http, &sample, String::new())
                .map_err(|e| e.to_string())?;
        }
        Ok(this)
    }

    async fn call(&self, call: &Prepared, row: &Row) -> Result<(), Trouble> {
        let request = call.request(&self.http, row, self.http.key()?)?;
        let answer = self
            .http
            .send(format!("{} of {}", call.verb, row.name), request)
            .await?;
        call.judge(&answer)
    }
}

impl Prepared {
    fn new(verb: &'static str, call: &Call) -> Result<Self, String> {
        let method = call
            .method
            .parse()
            .map_err(|_| format!("{verb}.method {:?} is none", call.method))?;
        let expect_body = match call.expect_body.as_str() {
            "" => None,
            text => Some(
                Regex::new(text).map_err(|e| format!("{verb}.expect_body: {}", one_line(&e.to_string())))?,
            ),
        };
        let mut templates = Environment::new();
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        let texts = [("url", &call.url), ("body", &call.body)];
        let headers = call.headers.iter().map(|(name, text)| (name.as_str(), text));
        for (name, text) in texts.into_iter().chain(headers) {
            templates
                .add_template_owned(name.to_owned(), text.clone())
                .map_err(|e| format!("{verb}.{name}: {}", one_line(&e.to_string())))?;
        }
        Ok(Self {
            verb,
            method,
            expect_body,
            templates,
            call: call.clone(),
        })
    }

    fn request(&self, http: &Http, row: &Row, secret: String) -> Result<reqwest::RequestBuilder, Trouble> {
        let values = Values {
            entry: &row.entry,
            id: &row.id,
            name: &row.name,
            key: &row.entry.key,
            secret,
        };
        let values = minijinja::Value::from_serialize(&values);
        let render = |name: &str| {
            let template = self.templates.get_template(name);
            let text = template.and_then(|template| template.render(values.clone()));
            text.map_err(|e| Trouble::Own(format!("{}.{name}: {}", self.verb, one_line(&e.to_string()))))
        };
        let mut request = http.request(self.method.clone(), &render("url")?);
        for name in self.call.headers.keys() {
            let bad = || Trouble::Own(format!("{}.headers: {name:?} can't be a header", self.verb));
            let header = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
            let mut value = HeaderValue::try_from(render(name)?).map_err(|_| bad())?;
            value.set_sensitive(true);
            request = request.header(header, value);
        }
        Ok(request.body(render("body")?))
    }

    fn judge(&self, answer: &Answer) -> Result<(), Trouble> {
        let status = answer.status.as_u16();
        let is_expected = match self.call.expect_status.as_slice() {
            // What is gone already need not be taken out.
            [] if self.verb == "deregister" => answer.status.is_success() || matches!(status, 404 | 410),
            [] => answer.status.is_success(),
            expected => expected.contains(&status),
        };
        if !is_expected {
            return Err(answer.nonsense("that is not what is expected"));
        }
        match &self.expect_body {
            Some(wanted) if !wanted.is_match(&answer.text) => {
                Err(answer.nonsense("expect_body does not match"))
            }
            _ => Ok(()),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tonic::async_trait]
impl Foreign for Webhook {
    fn rows(&self, entry: &Arc<Entry>) -> Vec<Row> {
        Row::of_each_name(entry)
    }

    async fn held(&self) -> Result<Vec<Held>, Trouble> {
        Ok(self.journal.held())
    }

    async fn add(&self, row: &Row) -> Result<(), Trouble> {
        // Without an answer nobody knows whether it was entered.
        self.journal.put(row, true)?;
        self.call(&self.register, row).await?;
        self.journal.put(row, false)
    }

    async fn remove(&self, held: &Held) -> Result<(), Trouble> {
        if let Some(row) = self.journal.get(&held.id) {
            self.call(&self.deregister, &row).await?;
        }
        self.journal.forget(&held.id)
    }

    async fn heartbeat(&self, row: &Row) -> Result<(), Trouble> {
        let Some(call) = &self.heartbeat else {
            return Ok(());
        };
        let beaten = self.call(call, row).await;
        if matches!(beaten, Err(Trouble::Nonsense(_))) {
            // It may have forgotten us, being restarted.
            self.journal.put(row, true)?;
        }
        beaten
    }
}
