//! docs/install.md, followed word for word on nodes with nothing but Slurm; and what `install.sh` does to a folder.
//!
//! Two things of the page are replaced, each in one place: `systemctl` by `systemctl.py`, since a lab has no systemd; and the compiler of `make dist`, since
//! what it would build has been built by cargo for this test (`Lab::archive`).

mod files;
mod page;
mod word_for_word;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serve_lab::Product;

/// The repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// A folder with what cargo built, without symbols: three nodes keep copies of it in memory.
fn stripped() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let built = Product::locate()?.built;
    for file in ["slurm-serve", "sserve", "libspank_serve.so"] {
        let to = folder.path().join(file);
        run(Command::new("strip").arg("-o").arg(&to).arg(built.join(file)))?;
    }
    Ok(folder)
}

/// A command's stdout; an error with all it said if it does not end well.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}
