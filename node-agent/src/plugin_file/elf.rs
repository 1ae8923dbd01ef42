//! The plugin's symbols, read and written in the file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, ObjectSymbol};

use super::SlurmVersion;

/// Why a file is no plugin, or can't be written: one line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PluginFileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{} is no shared library of this machine's kind: {error}", path.display())]
    NotElf { path: PathBuf, error: object::Error },
    #[error("{} is no Slurm plugin: it has no symbol {symbol}", path.display())]
    NoSymbol { path: PathBuf, symbol: &'static str },
    #[error("{}: the symbol {symbol} is not in the file's data", path.display())]
    NotInFile { path: PathBuf, symbol: &'static str },
}

type Result<T> = std::result::Result<T, PluginFileError>;

/// The release that `file` is stamped for.
pub fn read_version(file: &Path) -> Result<SlurmVersion> {
    let bytes = read(file)?;
    let at = locate(file, &bytes, "plugin_version")?;
    let number = bytes
        .get(at..at + 4)
        .and_then(|four| four.try_into().ok())
        .ok_or_else(|| not_in_file(file, "plugin_version"))?;
    Ok(SlurmVersion::from_number(u32::from_le_bytes(number)))
}

/// The name under which SPANK knows the plugin; ours is `serve`.
pub fn plugin_name(file: &Path) -> Result<String> {
    text(file, "plugin_name")
}

/// Of which slurm-serve the plugin is a part: `0.1.0`.
pub fn product_version(file: &Path) -> Result<String> {
    text(file, "slurm_serve_version")
}

/// The text that stands at a symbol, up to its NUL.
fn text(file: &Path, symbol: &'static str) -> Result<String> {
    let bytes = read(file)?;
    let at = locate(file, &bytes, symbol)?;
    let name: Vec<u8> = bytes[at..]
        .iter()
        .copied()
        .take_while(|byte| *byte != 0)
        .take(64)
        .collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// The libraries that the loader must find (DT_NEEDED).
pub fn needed(file: &Path) -> Result<Vec<String>> {
    let bytes = read(file)?;
    let parsed = parse(file, &bytes)?;
    let not_elf = |error| PluginFileError::NotElf {
        path: file.to_owned(),
        error,
    };
    let table = parsed
        .elf_section_table()
        .dynamic_table(parsed.endian(), parsed.data())
        .map_err(not_elf)?;
    let mut libraries = Vec::new();
    for entry in table.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
        let name = table.string(entry).map_err(not_elf)?;
        libraries.push(String::from_utf8_lossy(name).into_owned());
    }
    Ok(libraries)
}

/// Writes the number of `version` into `file`, or into a copy at `output`. The file appears whole or not at all: a slurmd that
/// has the old one loaded keeps it.
pub fn stamp(file: &Path, output: &Path, version: SlurmVersion) -> Result<()> {
    let mut bytes = read(file)?;
    let at = locate(file, &bytes, "plugin_version")?;
    bytes
        .get_mut(at..at + 4)
        .ok_or_else(|| not_in_file(file, "plugin_version"))?
        .copy_from_slice(&version.number().to_le_bytes());

    let mut temporary = output.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let failed = |error| PluginFileError::Io {
        path: temporary.clone(),
        error,
    };
    let write = || {
        let permissions = fs::metadata(file)?.permissions();
        let mut new = fs::File::create_new(&temporary)?;
        new.write_all(&bytes)?;
        // Every user's sbatch reads it; nobody needs to write or to run it.
        new.set_permissions(fs::Permissions::from_mode(permissions.mode() & 0o755 | 0o444))?;
        new.sync_all()?;
        fs::rename(&temporary, output)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        failed(error)
    })
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| PluginFileError::Io {
        path: file.to_owned(),
        error,
    })
}

fn parse<'a>(file: &Path, bytes: &'a [u8]) -> Result<ElfFile64<'a>> {
    ElfFile64::parse(bytes).map_err(|error| PluginFileError::NotElf {
        path: file.to_owned(),
        error,
    })
}

fn not_in_file(file: &Path, symbol: &'static str) -> PluginFileError {
    PluginFileError::NotInFile {
        path: file.to_owned(),
        symbol,
    }
}

/// Where in the file the data of a dynamic symbol stands: its address, mapped through the LOAD segments.
fn locate(file: &Path, bytes: &[u8], symbol: &'static str) -> Result<usize> {
    let parsed = parse(file, bytes)?;
    let address = parsed
        .dynamic_symbols()
        .find(|candidate| candidate.is_definition() && candidate.name() == Ok(symbol))
        .map(|found| found.address())
        .ok_or_else(|| PluginFileError::NoSymbol {
            path: file.to_owned(),
            symbol,
        })?;
    parsed
        .segments()
        .find_map(|segment| {
            let (offset, length) = segment.file_range();
            let within = address.checked_sub(segment.address())?;
            (within < length).then_some((offset + within) as usize)
        })
        .filter(|at| *at < bytes.len())
        .ok_or_else(|| not_in_file(file, symbol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A shared library with a plugin's symbols, made by the system's C compiler.
    fn library(folder: &Path) -> PathBuf {
        let source = folder.join("p.c");
        let plugin = folder.join("p.so");
        let text = "const char plugin_name[]=\"serve\"; const char plugin_type[]=\"spank\"; \
                    const unsigned int plugin_version=0x160508; int slurm_spank_init(void){return 0;}";
        fs::write(&source, text).unwrap();
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
            .args([&plugin, &source])
            .status();
        assert!(
            status
                .expect("a C compiler, which Rust's linker needs too")
                .success()
        );
        plugin
    }

    #[test]
    fn a_stamp_changes_four_bytes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let plugin = library(folder.path());
        let before = fs::read(&plugin).unwrap();
        assert_eq!(read_version(&plugin).unwrap().to_string(), "22.05.8");
        assert_eq!(plugin_name(&plugin).unwrap(), "serve");
        assert!(
            needed(&plugin)
                .unwrap()
                .iter()
                .any(|library| library.starts_with("libc.so"))
        );

        let copy = folder.path().join("copy.so");
        stamp(&plugin, &copy, "24.11.5".parse().unwrap()).unwrap();
        assert_eq!(fs::read(&plugin).unwrap(), before);
        assert_eq!(read_version(&copy).unwrap().to_string(), "24.11.5");

        stamp(&plugin, &plugin, "24.11.5".parse().unwrap()).unwrap();
        let after = fs::read(&plugin).unwrap();
        let changed = before.iter().zip(&after).filter(|(old, new)| old != new).count();
        assert!(
            before.len() == after.len() && changed <= 3,
            "{changed} bytes changed"
        );
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 3, "no temporary file is left: {left:?}");
    }

    #[test]
    fn what_is_no_plugin_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text.so");
        fs::write(&text, "no library").unwrap();
        let version = "24.11.5".parse().unwrap();
        assert!(matches!(
            stamp(&text, &text, version),
            Err(PluginFileError::NotElf { .. })
        ));
        assert_eq!(fs::read_to_string(&text).unwrap(), "no library");
        let missing = folder.path().join("none.so");
        assert!(matches!(read_version(&missing), Err(PluginFileError::Io { .. })));
        let this_program = std::env::current_exe().unwrap();
        assert!(matches!(
            read_version(&this_program),
            Err(PluginFileError::NoSymbol { .. })
        ));
    }
}
