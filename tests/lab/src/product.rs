//! The product in a lab: its programs, plugin and settings, put where a package would put them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::spec::{LabSpec, On};

/// What was built and is to be installed in the nodes.
#[derive(Clone, Debug)]
pub struct Product {
    /// The folder of `slurm-serve`, `sserve` and `libspank_serve.so`.
    pub built: PathBuf,
}

/// Where the plugin lies in a node.
pub(crate) const PLUGIN: &str = "/usr/lib/slurm-serve/spank_serve.so";

/// What an admin would install.
const SNIPPET: &str = include_str!("../../../slurm-conf/plugstack.conf.d/serve.conf");

impl Product {
    /// What cargo built: `$SLURM_SERVE_BUILT`, else the folder that the running program was built into.
    pub fn locate() -> Result<Self> {
        let built = match std::env::var_os("SLURM_SERVE_BUILT") {
            Some(folder) => PathBuf::from(folder),
            None => {
                let own = std::env::current_exe().context("can't find the running program")?;
                // target/debug/lab, target/debug/deps/test-… and target/debug/examples/… all lie below it.
                let below = |folder: &Path| {
                    matches!(
                        folder.file_name().and_then(|name| name.to_str()),
                        Some("deps" | "examples")
                    )
                };
                let folder = own.parent().context("the running program lies nowhere")?;
                if below(folder) {
                    folder.parent().unwrap_or(folder).into()
                } else {
                    folder.into()
                }
            }
        };
        let product = Self { built };
        for file in ["slurm-serve", "sserve", "libspank_serve.so"] {
            if !product.built.join(file).is_file() {
                bail!(
                    "there is no {file} in {}: build the product first (`cargo build`), or set SLURM_SERVE_BUILT",
                    product.built.display()
                );
            }
        }
        Ok(product)
    }
}

impl LabSpec {
    /// Installs the product: programs on every node; the plugin, stamped for the node's Slurm, where jobs are
    /// submitted and run. Settings (`/etc/slurm-serve`) are placed by [`LabSpec::file`]; the agent isn't started.
    pub fn product(self, product: &Product) -> Result<Self> {
        let plugin = product.built.join("libspank_serve.so");
        let bytes = std::fs::read(&plugin).with_context(|| format!("can't read {}", plugin.display()))?;
        let spec = self
            .bind(On::All, "/usr/bin/slurm-serve", product.built.join("slurm-serve"))
            .bind(On::All, "/usr/bin/sserve", product.built.join("sserve"))
            .file(On::ComputeAndLogin, PLUGIN, bytes, 0o755)
            .file(
                On::ComputeAndLogin,
                "/etc/slurm/plugstack.conf.d/serve.conf",
                SNIPPET,
                0o644,
            );
        Ok(spec.prepare(|node| {
            if On::ComputeAndLogin.includes(node.role(), node.short()) {
                node.command("root", ["sserve", "plugin", "stamp", PLUGIN])
                    .run()?;
            }
            Ok(())
        }))
    }
}
