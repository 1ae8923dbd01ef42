//! The lab that everything is measured on: a login node with the gateway, one compute node with the product, two without its plugin.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serve_e2e::{Engine, Options, Site};
use serve_lab::{LabSpec, Node, On, wait_for};

use crate::http::{Address, Connection, get};

/// The number of the node with the plugin, as [`Site::node`] counts.
pub const WITH: usize = 1;
/// The node without it that is compared with that one.
pub const WITHOUT: usize = 2;
/// Another one without it: how much two equal nodes differ.
pub const ALSO_WITHOUT: usize = 3;

/// Where the gateway listens on the login node.
pub const GATEWAY: &str = "127.0.0.1:8700";

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Few rounds, for a look.
    pub quick: bool,
}

impl Effort {
    /// Rounds: `full`, or `quick` for a look.
    pub fn rounds(self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// Brings it up.
pub fn up(real: bool) -> Result<Site> {
    let options = Options {
        engine: if real { Engine::Real } else { Engine::Stub },
        nodes: 3,
        // Proxies outside of the lab reach models by address, and two of them send no key.
        config: Some(|lab, node| {
            let agent = format!(
                "advertise_address = {:?}\npeers = [{:?}]\n",
                node.address(),
                lab.login().address()
            );
            (agent, String::new())
        }),
        ..Options::default()
    };
    Site::up_with(&options, |mut spec| {
        // Ten models at once, each with a CPU of its own.
        spec.cpus = 16;
        for (name, env) in RECIPES {
            let file = format!("/etc/slurm-serve/models.d/{name}.toml");
            spec = spec.file(On::All, file, recipe(name, env), 0o644);
        }
        [WITHOUT, ALSO_WITHOUT].into_iter().fold(spec, without_plugin)
    })
    .context("the lab for the benchmarks does not come up")
}

/// What the stub engine does in the benchmarks: a name, and its script.
const RECIPES: [(&str, &str); 3] = [
    // Ready when it is told to, by a file.
    ("bench-loads", "STUB_LOAD_UNTIL = \"/tmp/bench-go\""),
    // Answers at once, and says when each token was made.
    ("bench-fast", "STUB_STAMP = \"1\"\nSTUB_TOKEN_MS = \"3\""),
    // Takes a while over an answer, so that some are always in flight.
    ("bench-busy", "STUB_TOKEN_MS = \"10\""),
];

fn recipe(name: &str, env: &str) -> String {
    format!(
        "name = {name:?}\nsource = \"/opt\"\ngpus = 0\ndrain_timeout = \"5s\"\nready_timeout = \"30s\"\n\n\
         [engine]\ncommand = [\"/usr/lib/slurm-serve/stub-engine\", \"serve\"]\n\n[env]\n{env}\n"
    )
}

fn without_plugin(spec: LabSpec, number: usize) -> LabSpec {
    let node = On::Node(format!("n{number}"));
    spec.file(node, "/etc/slurm/plugstack.conf.d/serve.conf", "# none\n", 0o644)
}

/// A connection to the gateway, from the login node.
pub fn gateway(site: &Site) -> Result<Connection> {
    let address: SocketAddr = GATEWAY.parse()?;
    Connection::open(site.lab.login(), &Address::Tcp(address))
}

/// Whether the gateway lists a model as ready.
pub fn listed(gateway: &mut Connection, model: &str) -> Result<bool> {
    let (status, body) = gateway.ask(&get("/v1/models"))?;
    ensure!(status == 200, "/v1/models answered {status}: {body}");
    let list: serde_json::Value = serde_json::from_str(&body)?;
    let data = list["data"].as_array().context("/v1/models has no data")?;
    Ok(data.iter().any(|entry| entry["id"] == model))
}

/// The engine's own socket of a job, in the runner's private folder on its node.
pub fn engine_socket(node: &Node, job: u32) -> Result<PathBuf> {
    let prefix = format!("sserve-{job}-");
    let found = node.inside(|| -> std::io::Result<Option<PathBuf>> {
        for entry in std::fs::read_dir("/tmp")? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                return Ok(Some(entry.path().join("s")));
            }
        }
        Ok(None)
    })?;
    found?.with_context(|| format!("job {job} has no folder on {}", node.name()))
}

/// Waits until Slurm has nothing of any job on a node: no step, no epilog.
pub fn wait_idle(node: &Node) -> Result<()> {
    wait_for(
        Duration::from_secs(30),
        &format!("{} to have no job", node.name()),
        || {
            let busy = node
                .processes()?
                .iter()
                .any(|process| process.name.starts_with("slurmstepd"));
            Ok((!busy).then_some(()))
        },
    )
}
