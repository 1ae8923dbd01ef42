//! The few things that tests need in C: shared libraries for programs that are not ours.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What cc makes of `source`, a file of this package, with further `arguments`.
pub fn compiled(source: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("library.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror"])
        .args(arguments)
        .arg("-o")
        .args([&library, &source])
        .output()
        .context("cc cannot be run; `make setup` installs it")?;
    ensure!(
        output.status.success(),
        "cc: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(std::fs::read(&library)?)
}
