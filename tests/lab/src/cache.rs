//! The cache folder: what takes long to make and is the same for every lab.
//!
//! An entry's name ends in a fingerprint of the recipe it was made by, and it appears by a rename once complete, so
//! that an entry that is there is whole and current.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The cache folder: `$SLURM_SERVE_CACHE`, else `slurm-serve` in `$XDG_CACHE_HOME`, else in `~/.cache`.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache folder that the environment names. Nothing is made yet.
    pub fn locate() -> Result<Self> {
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let folder = set("SLURM_SERVE_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("slurm-serve")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/slurm-serve")))
            .context("no place for the cache: set SLURM_SERVE_CACHE")?;
        if !folder.is_absolute() {
            bail!(
                "the cache folder must be an absolute path, not {}",
                folder.display()
            );
        }
        Ok(Self { folder })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The entry `NAME-FINGERPRINT`, made by `make` in a temporary folder if it isn't there yet.
    ///
    /// Only one process makes at a time; the others wait for it, and say so.
    pub(crate) fn entry(
        &self,
        name: &str,
        recipe: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}-{:016x}", fingerprint(recipe)));
        if path.is_dir() {
            return Ok(path);
        }
        let _lock = self.lock()?;
        if path.is_dir() {
            return Ok(path);
        }
        // Under the lock nobody else is making one, so what lies here was left by one who was killed.
        let making = self.folder.join(format!("making-{name}"));
        remove(&making)?;
        fs::create_dir(&making).with_context(|| format!("can't make {}", making.display()))?;
        match make(&making) {
            Ok(()) => {
                fs::rename(&making, &path)
                    .with_context(|| format!("can't put {} in its place", path.display()))?;
                Ok(path)
            }
            Err(error) => {
                remove(&making)?;
                Err(error)
            }
        }
    }

    fn lock(&self) -> Result<Flock<File>> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("can't make the cache folder {}", self.folder.display()))?;
        let path = self.folder.join("lock");
        let open = || File::create(&path).with_context(|| format!("can't open {}", path.display()));
        match Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, Errno::EWOULDBLOCK)) => {}
            Err((_, error)) => return Err(anyhow!(error)).context("can't lock the cache"),
        }
        progress("another process is filling the cache; waiting for it");
        // No deadline: it ends with the other's downloads, and with that process at the latest.
        Flock::lock(open()?, FlockArg::LockExclusive)
            .map_err(|(_, error)| anyhow!(error).context("can't lock the cache"))
    }

    /// Removes the whole cache.
    pub fn remove(&self) -> Result<()> {
        if !self.folder.exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        // What is known to be ours, then the folder if nothing else lies in it: the path may be set to anything.
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if ["root-", "vllm-", "grpc-", "making-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                remove(&self.folder.join(&*name))?;
            }
        }
        fs::remove_file(self.folder.join("lock")).context("can't remove the cache's lock")?;
        match fs::remove_dir(&self.folder) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                progress(&format!(
                    "{} holds files that aren't the lab's; it stays",
                    self.folder.display()
                ));
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("can't remove {}", self.folder.display())),
        }
    }
}

/// Removes a folder and all in it; that it isn't there is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A line about a long step, on stderr.
pub(crate) fn progress(line: &str) {
    // A closed stderr must not end the work.
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}

/// FNV-1a: the same on every machine and with every compiler, unlike std's hasher.
fn fingerprint(recipe: &str) -> u64 {
    recipe.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str) -> Cache {
        let folder = std::env::temp_dir().join(format!("serve-lab-{name}-{}", std::process::id()));
        remove(&folder).unwrap();
        Cache { folder }
    }

    #[test]
    fn fingerprints_are_fnv_1a() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn an_entry_is_made_once_per_recipe_and_never_half() {
        let cache = cache("entries");
        let failed = cache.entry("root-x", "one", |folder| {
            fs::write(folder.join("half"), "")?;
            bail!("no network")
        });
        assert_eq!(failed.unwrap_err().to_string(), "no network");
        let made = cache
            .entry("root-x", "one", |folder| Ok(fs::write(folder.join("whole"), "")?))
            .unwrap();
        assert!(made.join("whole").exists() && !made.join("half").exists());
        let again = cache.entry("root-x", "one", |_| bail!("made twice")).unwrap();
        assert_eq!(made, again);
        let other = cache.entry("root-x", "two", |_| Ok(())).unwrap();
        assert_ne!(made, other);
        cache.remove().unwrap();
        assert!(!cache.folder().exists());
    }

    #[test]
    fn foreign_files_survive_the_removal() {
        let cache = cache("foreign");
        cache.entry("root-x", "one", |_| Ok(())).unwrap();
        fs::write(cache.folder().join("letter"), "").unwrap();
        cache.remove().unwrap();
        assert!(cache.folder().join("letter").exists());
        remove(cache.folder()).unwrap();
    }
}
