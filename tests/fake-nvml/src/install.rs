//! The built library, for tests to have one of their own.

use std::io;
use std::path::{Path, PathBuf};

use crate::Scenario;

/// The name of a scenario beside its library.
pub const SCENARIO_FILE: &str = "scenario.json";

/// The library as it was built with the running program: beside a test, or where `cargo build` puts it.
pub fn library() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let name = format!(
        "{}fake_nvml{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    [
        folder.join(&name),
        folder.join("deps").join(&name),
        folder.join("..").join(&name),
    ]
    .into_iter()
    .find(|path| path.exists())
    .ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("no {name} near {}", program.display()),
        )
    })
}

/// Puts a library and its scenario into a folder, which is made if need be, and gives the library's path; the scenario is
/// [`SCENARIO_FILE`] beside it.
///
/// The copy is what sets tests apart: the loader takes a second opening of the same file for the first.
pub fn install(folder: &Path, scenario: &Scenario) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    scenario.write(folder.join(SCENARIO_FILE))?;
    let path = folder.join("libnvidia-ml.so.1");
    std::fs::copy(library()?, &path)?;
    Ok(path)
}
