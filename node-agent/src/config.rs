//! The documented settings: `/etc/slurm-serve/config.toml`, world-readable, without secrets (those are files it names).
//!
//! `slurm-conf/config.toml` is the same thing for people: every key with its default and what it means. A test holds the two together.
//! Unknown keys are refused, so that a typo is found when the file is read and not at 3 a.m.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slurm_serve_recipe::Publish;

use crate::catalog::push::Settings as Catalog;
use crate::network::Network;

/// Where the configuration lies unless `--config` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/slurm-serve/config.toml";

/// The documented default file, as `--print-config` prints it.
pub const DOCUMENTED: &str = include_str!("../../slurm-conf/config.toml");

/// All settings. Every field is documented in [`DOCUMENTED`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // documented in the default file, once
pub struct Config {
    pub agent: Agent,
    pub access: Access,
    pub telemetry: Telemetry,
    pub gateway: Gateway,
    pub client: Client,
    pub catalogs: Vec<Catalog>,
}

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Agent {
    pub socket: PathBuf,
    pub listen: String,
    pub node_name: String,
    pub cluster_name: String,
    pub advertise_address: String,
    pub bind_address: String,
    pub peers: Vec<Network>,
    pub run_dir: PathBuf,
    pub state_dir: PathBuf,
    pub scratch_dir: PathBuf,
    pub recipes: PathBuf,
    pub own_recipes: Publish,
    pub ports: PortRange,
    pub internal_ports: PortRange,
    pub internal_ports_per_model: u16,
    pub slurm_bin_dir: PathBuf,
    pub srun_box: SrunBox,
    #[serde(with = "crate::duration")]
    pub slurm_command_timeout: Duration,
    #[serde(with = "crate::duration")]
    pub launch_timeout: Duration,
    #[serde(with = "crate::duration")]
    pub allocation_wait: Duration,
    #[serde(with = "crate::duration")]
    pub settle_timeout: Duration,
    #[serde(with = "crate::duration")]
    pub recover_timeout: Duration,
    #[serde(with = "crate::duration")]
    pub runner_timeout: Duration,
    #[serde(with = "crate::duration")]
    pub runner_silence: Duration,
    #[serde(with = "crate::duration")]
    pub retire_before: Duration,
    #[serde(with = "crate::duration")]
    pub end_time_every: Duration,
    #[serde(with = "crate::duration")]
    pub heartbeat: Duration,
    #[serde(with = "crate::duration")]
    pub lease: Duration,
    #[serde(with = "crate::duration")]
    pub keep_ended: Duration,
    pub max_watchers: usize,
    pub max_models: usize,
    pub tls: Tls,
}

/// `[agent.tls]`: the TCP port for callers without munge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Tls {
    pub listen: String,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub client_ca: PathBuf,
}

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Telemetry {
    pub enabled: bool,
    #[serde(with = "crate::duration")]
    pub interval: Duration,
    pub nvml_library: PathBuf,
    #[serde(with = "crate::duration")]
    pub hang_after: Duration,
}

impl Default for Telemetry {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            enabled: true,
            interval: s(1),
            nvml_library: PathBuf::new(),
            hang_after: s(5),
        }
    }
}

impl Default for Agent {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            socket: "/run/slurm-serve/agent.sock".into(),
            listen: "0.0.0.0:871".into(),
            node_name: String::new(),
            cluster_name: String::new(),
            advertise_address: String::new(),
            bind_address: "0.0.0.0".into(),
            peers: Vec::new(),
            run_dir: "/run/slurm-serve".into(),
            state_dir: "/var/lib/slurm-serve".into(),
            scratch_dir: "/tmp".into(),
            recipes: "/etc/slurm-serve/models.d".into(),
            own_recipes: Publish::Everyone,
            ports: PortRange {
                first: 18100,
                last: 18199,
            },
            internal_ports: PortRange {
                first: 18200,
                last: 22199,
            },
            internal_ports_per_model: 40,
            slurm_bin_dir: PathBuf::new(),
            srun_box: SrunBox::Auto,
            slurm_command_timeout: s(10),
            launch_timeout: s(180),
            allocation_wait: s(5),
            settle_timeout: s(2),
            recover_timeout: s(10),
            runner_timeout: s(5),
            runner_silence: s(3),
            retire_before: s(60),
            end_time_every: s(30),
            heartbeat: s(2),
            lease: s(10),
            keep_ended: s(3600),
            max_watchers: 64,
            max_models: 64,
            tls: Tls::default(),
        }
    }
}

impl Agent {
    /// Slurm's name of this node: as set, else the host's short name.
    pub fn own_node(&self) -> String {
        if !self.node_name.is_empty() {
            return self.node_name.clone();
        }
        let host = nix::unistd::gethostname().unwrap_or_default();
        let host = host.to_string_lossy();
        host.split('.').next().unwrap_or_default().to_owned()
    }
}

/// What holds the srun client of a model's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SrunBox {
    /// The first of the following that works here.
    Auto,
    /// A transient scope of systemd's.
    Scope,
    /// A cgroup of its own.
    Cgroup,
    /// Resource limits alone.
    Limits,
}

/// `[access]`: who has which role over TCP, and the tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Access {
    pub token_file: PathBuf,
    pub read: Principals,
    pub proxy: Principals,
    pub admin: Principals,
}

impl Default for Access {
    fn default() -> Self {
        let only = |user: &str| Principals {
            users: vec![user.into()],
            groups: vec![],
            certificates: vec![],
        };
        Self {
            token_file: PathBuf::new(),
            read: only("*"),
            proxy: only("slurm-serve"),
            admin: only("root"),
        }
    }
}

/// Users and groups by name, for munge; names in certificates, for TLS. `*` is everybody who has one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Principals {
    pub users: Vec<String>,
    pub groups: Vec<String>,
    pub certificates: Vec<String>,
}

/// `[gateway]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Gateway {
    pub listen: String,
    pub key_file: PathBuf,
    pub access_log: bool,
    pub open_metrics: bool,
    pub state_dir: PathBuf,
    pub agents: Vec<String>,
    pub agent_port: u16,
    #[serde(with = "crate::duration")]
    pub discover_interval: Duration,
    #[serde(with = "crate::duration")]
    pub connect_timeout: Duration,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8700".into(),
            key_file: PathBuf::new(),
            access_log: true,
            open_metrics: false,
            state_dir: "/var/lib/slurm-serve-gateway".into(),
            agents: Vec::new(),
            agent_port: 871,
            discover_interval: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
        }
    }
}

/// `[client]`: what `sserve` asks, and how it and the gateway prove who they are over TLS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Client {
    pub gateway: String,
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
    pub ca_file: PathBuf,
    pub token_file: PathBuf,
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            gateway: String::new(),
            timeout: Duration::from_secs(5),
            ca_file: PathBuf::new(),
            token_file: PathBuf::new(),
            client_cert: PathBuf::new(),
            client_key: PathBuf::new(),
        }
    }
}

/// An inclusive range of TCP ports, written `"18100-18199"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port, itself included.
    pub last: u16,
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is no range of ports; write \"18100-18199\"");
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let port = |part: &str| {
            part.trim()
                .parse::<u16>()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(bad)
        };
        let range = Self {
            first: port(first)?,
            last: port(last)?,
        };
        if range.first > range.last {
            Err(bad())
        } else {
            Ok(range)
        }
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> String {
        format!("{}-{}", range.first, range.last)
    }
}

impl PortRange {
    /// All ports of the range, ascending.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Why a configuration cannot be used: one line with the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{0}: {1}; name another with --config")]
    Read(PathBuf, std::io::Error),
    /// The file is not what it should be.
    #[error("{0}: {1}")]
    Parse(PathBuf, String),
    /// The values do not go together.
    #[error("{0}: {1}")]
    Invalid(PathBuf, String),
}

impl Config {
    /// Reads `path`. A missing file is an error only if somebody `named` it: the defaults are a working configuration.
    pub fn load(path: &Path, named: bool) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !named => return Ok(Self::default()),
            Err(e) => return Err(ConfigError::Read(path.into(), e)),
        };
        let config: Self =
            toml::from_str(&text).map_err(|e| ConfigError::Parse(path.into(), one_line(&e.to_string())))?;
        config.check().map_err(|e| ConfigError::Invalid(path.into(), e))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let agent = &self.agent;
        if agent.ports.overlaps(agent.internal_ports) {
            return Err("agent.ports and agent.internal_ports overlap; keep them apart".into());
        }
        if agent.internal_ports_per_model < 20 {
            return Err("agent.internal_ports_per_model is below 20; an engine needs about 14 ports".into());
        }
        if agent.runner_silence < Duration::from_secs(2) {
            return Err("agent.runner_silence is below 2 s; a runner speaks once a second".into());
        }
        if agent.lease <= agent.heartbeat {
            return Err("agent.lease must be longer than agent.heartbeat".into());
        }
        self.check_tls()?;
        self.check_catalogs()
    }

    fn check_catalogs(&self) -> Result<(), String> {
        for (at, catalog) in self.catalogs.iter().enumerate() {
            catalog.check()?;
            if self.catalogs[..at].iter().any(|other| other.name == catalog.name) {
                return Err(format!("catalogs.{}: the name is there twice", catalog.name));
            }
            if catalog.is_keyless() && self.agent.peers.is_empty() {
                return Err(format!(
                    "catalogs.{}: what reads it sends models no key; put its address into agent.peers, so that they let it in",
                    catalog.name
                ));
            }
        }
        Ok(())
    }

    fn check_tls(&self) -> Result<(), String> {
        let (tls, client) = (&self.agent.tls, &self.client);
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        if is_set(&client.client_cert) != is_set(&client.client_key) {
            return Err("client.client_cert and client.client_key go together; set both".into());
        }
        if tls.listen.is_empty() {
            return Ok(());
        }
        if !is_set(&tls.cert) || !is_set(&tls.key) {
            return Err("agent.tls.listen is set; agent.tls.cert and agent.tls.key must be too".into());
        }
        if !is_set(&self.access.token_file) && !is_set(&tls.client_ca) {
            return Err(
                "nobody could call agent.tls.listen; set access.token_file or agent.tls.client_ca".into(),
            );
        }
        let access = [&self.access.read, &self.access.proxy, &self.access.admin];
        if access.iter().any(|who| !who.certificates.is_empty()) && !is_set(&tls.client_ca) {
            return Err(
                "[access.*] names certificates; set agent.tls.client_ca, which says who signs them".into(),
            );
        }
        Ok(())
    }
}

/// Folds a multi-line message of the TOML parser into one line.
fn one_line(text: &str) -> String {
    let kept = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('|'));
    kept.filter(|line| !line.chars().next().is_some_and(|c| c.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_says_the_defaults_and_every_key() {
        let parsed: Config = toml::from_str(DOCUMENTED).expect("slurm-conf/config.toml parses");
        assert_eq!(parsed, Config::default());
        let written: toml::Table = toml::from_str(DOCUMENTED).expect("a table");
        let all = toml::Table::try_from(Config::default()).expect("a table");
        assert_eq!(written, all, "every key stands in slurm-conf/config.toml");
    }

    #[test]
    fn a_typo_is_named_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "[agent]\nsokcet = \"/x\"\n").unwrap();
        let error = Config::load(&file, true).unwrap_err().to_string();
        assert!(
            error.contains("config.toml") && error.contains("line 2") && error.contains("sokcet"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn ranges_that_overlap_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "[agent]\ninternal_ports = \"18000-18150\"\n").unwrap();
        assert!(
            Config::load(&file, true)
                .unwrap_err()
                .to_string()
                .contains("overlap")
        );
    }

    #[test]
    fn tls_that_nobody_could_use_is_refused_with_the_remedy() {
        let cert = "[agent.tls]\nlisten = \"0.0.0.0:872\"\ncert = \"/c\"\nkey = \"/k\"\n";
        let tokens = "[access]\ntoken_file = \"/t\"\n";
        let check = |text: &str| toml::from_str::<Config>(text).unwrap().check();
        assert_eq!(check(&format!("{cert}{tokens}")), Ok(()));
        for (text, remedy) in [
            (
                "[agent.tls]\nlisten = \"0.0.0.0:872\"\n".to_owned(),
                "agent.tls.cert",
            ),
            (cert.to_owned(), "access.token_file"),
            (
                format!("{cert}{tokens}[access.read]\ncertificates = [\"*\"]\n"),
                "agent.tls.client_ca",
            ),
            ("[client]\nclient_cert = \"/c\"\n".to_owned(), "set both"),
        ] {
            assert!(check(&text).unwrap_err().contains(remedy), "{text}");
        }
    }
}
