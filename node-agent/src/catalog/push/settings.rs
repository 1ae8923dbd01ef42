//! `[[catalogs]]`: which catalogs there are, how each is told, and by whom.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::webhook::Call;

/// One catalog. A key that its kind does not have is an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // documented in docs/proxies.md, once
pub struct Settings {
    pub name: String,
    pub kind: Kind,
    pub kept_by: Kept,
    pub url: String,
    pub key_file: PathBuf,
    pub ca_file: PathBuf,
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
    #[serde(with = "crate::duration")]
    pub check_every: Duration,
    #[serde(with = "crate::duration")]
    pub agree_within: Duration,
    #[serde(with = "optional")]
    pub settle: Option<Duration>,
    #[serde(with = "crate::duration")]
    pub sweep_every: Duration,
    #[serde(with = "crate::duration")]
    pub sweep_pause: Duration,
    pub provider: String,
    pub software: Option<Software>,
    pub path: PathBuf,
    pub format: Option<Format>,
    pub register: Option<Call>,
    pub deregister: Option<Call>,
    pub heartbeat: Option<Call>,
    #[serde(with = "crate::duration")]
    pub heartbeat_every: Duration,
}

/// How a catalog is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// LiteLLM's proxy.
    #[default]
    Litellm,
    /// smg, sglang-router, vllm-router.
    Router,
    /// A file that something else reads.
    File,
    /// Whatever takes HTTP requests.
    Webhook,
}

/// Who keeps a catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// The gateway process, for all nodes.
    #[default]
    Gateway,
    /// Each agent, for its own node.
    Agent,
}

/// Routers with `/workers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Software {
    /// The SGLang model gateway's successor.
    Smg,
    /// The SGLang model gateway.
    SglangRouter,
    /// vLLM's router.
    VllmRouter,
}

/// What a file looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Endpoints for llm-d's file discovery.
    LlmD,
    /// Dynamic configuration of vLLM's production stack, as JSON.
    ProductionStackJson,
    /// The same as YAML.
    ProductionStackYaml,
    /// Targets for Prometheus' file_sd.
    Prometheus,
    /// Our own list.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            name: String::new(),
            kind: Kind::Litellm,
            kept_by: Kept::Gateway,
            url: String::new(),
            key_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            timeout: s(5),
            check_every: s(10),
            agree_within: s(5),
            settle: None,
            sweep_every: s(600),
            sweep_pause: s(60),
            provider: "openai".into(),
            software: None,
            path: PathBuf::new(),
            format: None,
            register: None,
            deregister: None,
            heartbeat: None,
            heartbeat_every: s(30),
        }
    }
}

impl Settings {
    /// For people: which software, and where.
    pub fn place(&self) -> String {
        match self.kind {
            Kind::Litellm => format!("LiteLLM at {}", self.url),
            Kind::Router => format!(
                "{} at {}",
                self.software.map_or("a router", Software::word),
                self.url
            ),
            Kind::File => self.path.display().to_string(),
            Kind::Webhook => {
                let url = self.register.as_ref().map_or("nowhere", |call| call.url.as_str());
                format!("webhook {url}")
            }
        }
    }

    /// How long after it was told a catalog may still send requests.
    pub fn settle(&self) -> Duration {
        self.settle.unwrap_or(match self.format {
            // It looks every 10 s.
            Some(Format::ProductionStackJson | Format::ProductionStackYaml) => Duration::from_secs(11),
            // It watches.
            Some(Format::LlmD) => Duration::from_secs(1),
            _ => Duration::ZERO,
        })
    }

    /// Can anybody ask it what it holds? Else only its keeper knows.
    pub fn is_asked(&self) -> bool {
        matches!(self.kind, Kind::Litellm | Kind::Router)
    }

    /// How long a pass may take until the catalog shows what it was told.
    pub fn agree_within(&self) -> Duration {
        self.agree_within
    }

    /// Between two heartbeats, if there are any.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.heartbeat.as_ref().map(|_| self.heartbeat_every)
    }

    /// Until the next look when nothing changes.
    pub fn rest(&self) -> Duration {
        self.heartbeat()
            .map_or(self.check_every, |every| every.min(self.check_every))
    }

    /// Does it not send the models their own keys, so that they must let its address in without? smg passes on what its client sent, if that sent
    /// anything, as every OpenAI client does.
    pub fn is_keyless(&self) -> bool {
        matches!(self.software, Some(Software::Smg | Software::VllmRouter))
            || matches!(
                self.format,
                Some(Format::LlmD | Format::ProductionStackJson | Format::ProductionStackYaml)
            )
    }

    /// What is wrong with it, in one line.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(format!(
                "catalogs: the name {name:?} is none; letters, digits, - and _, at most 64"
            ));
        }
        let bad = |why: &str| Err(format!("catalogs.{name}: {why}"));
        let needs = |is: bool, key: &str| match is {
            true => Ok(()),
            false => Err(format!("catalogs.{name}: this kind needs `{key}`")),
        };
        let default = Self::default();
        let has = [
            (
                "url",
                !self.url.is_empty(),
                &[Kind::Litellm, Kind::Router] as &[Kind],
            ),
            ("provider", self.provider != default.provider, &[Kind::Litellm]),
            ("software", self.software.is_some(), &[Kind::Router]),
            ("path", self.path != default.path, &[Kind::File]),
            ("format", self.format.is_some(), &[Kind::File]),
            ("register", self.register.is_some(), &[Kind::Webhook]),
            ("deregister", self.deregister.is_some(), &[Kind::Webhook]),
            ("heartbeat", self.heartbeat.is_some(), &[Kind::Webhook]),
            (
                "key_file",
                self.key_file != default.key_file,
                &[Kind::Litellm, Kind::Router, Kind::Webhook],
            ),
            (
                "ca_file",
                self.ca_file != default.ca_file,
                &[Kind::Litellm, Kind::Router, Kind::Webhook],
            ),
        ];
        if let Some((key, ..)) = has
            .iter()
            .find(|(_, is, kinds)| *is && !kinds.contains(&self.kind))
        {
            return bad(&format!("`{key}` is not for this kind"));
        }
        match self.kind {
            Kind::Litellm => {
                needs(!self.url.is_empty(), "url")?;
                needs(self.key_file != default.key_file, "key_file")?;
            }
            Kind::Router => {
                needs(!self.url.is_empty(), "url")?;
                needs(self.software.is_some(), "software")?;
            }
            Kind::File => {
                needs(self.path.is_absolute(), "path (an absolute one)")?;
                needs(self.format.is_some(), "format")?;
                if self.kept_by == Kept::Agent {
                    return bad("a file is one thing for all nodes: kept_by must be \"gateway\"");
                }
            }
            Kind::Webhook => {
                needs(self.register.is_some(), "register")?;
                needs(self.deregister.is_some(), "deregister")?;
            }
        }
        if self.timeout.is_zero() || self.check_every.is_zero() || self.heartbeat_every.is_zero() {
            return bad("timeout, check_every and heartbeat_every must be longer than nothing");
        }
        Ok(())
    }
}

impl Software {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Smg => "smg",
            Self::SglangRouter => "sglang-router",
            Self::VllmRouter => "vllm-router",
        }
    }
}

/// A duration that may be left out.
mod optional {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Written(#[serde(with = "crate::duration")] Duration);

    pub fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Written).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(from)?.map(|Written(value)| value))
    }
}
