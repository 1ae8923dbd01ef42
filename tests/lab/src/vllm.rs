//! The real vLLM in its CPU build, and the tiny model: cached beside the root file system whose Python they need.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::VLLM;
use crate::birth::Bind;
use crate::cache::Cache;
use crate::rootfs::{ensure_root, run_in_root};
use crate::spec::Release;

const INSTALL: &str = include_str!("../assets/install_vllm.sh");
const MODEL: &str = include_str!("../assets/make_tiny_model.py");

/// The folder that holds `vllm/` and `models/`, made first if it isn't cached (a minute and 6 GB).
///
/// A virtual environment knows its own path and its Python, so it is made where nodes see it, once per release.
pub fn ensure_vllm(cache: &Cache, release: Release) -> Result<PathBuf> {
    let root = ensure_root(cache, release)?;
    cache.entry(
        &format!("vllm-{release}"),
        &format!("{INSTALL}\n{MODEL}"),
        |folder| {
            for (name, text) in [("install_vllm.sh", INSTALL), ("make_tiny_model.py", MODEL)] {
                fs::write(folder.join(name), text).with_context(|| format!("can't write {name}"))?;
            }
            for name in ["vllm", "models"] {
                fs::create_dir(folder.join(name)).with_context(|| format!("can't make {name}"))?;
            }
            let mut binds = binds(folder, true);
            binds.push(Bind {
                from: folder.to_path_buf(),
                to: "/tmp/lab".into(),
                writable: false,
            });
            let argv = ["sh", "/tmp/lab/install_vllm.sh", "/tmp/lab/make_tiny_model.py"].map(String::from);
            run_in_root(&root, binds, "vLLM for CPUs and a tiny model", &argv)
        },
    )
}

/// What a node sees of it.
pub(crate) fn binds(folder: &Path, writable: bool) -> Vec<Bind> {
    [("vllm", VLLM), ("models", "/opt/models")]
        .map(|(name, to)| Bind {
            from: folder.join(name),
            to: to.into(),
            writable,
        })
        .into()
}
