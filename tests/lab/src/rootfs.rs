//! The root file systems: one per Slurm release, made by debootstrap and cached.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::birth::{Bind, Birth, Root};
use crate::cache::{Cache, progress};
use crate::spec::Release;
use crate::{MODELS_GROUP, USERS};

/// Slurm and munge; what tests and the demo run inside; `tini`, each node's first process.
const PACKAGES: &str = "slurmd,slurmctld,slurm-client,slurm-wlm-basic-plugins,libslurm-dev,munge,libmunge2,\
    python3,python3-venv,procps,iproute2,curl,nginx-light,libc-bin,ca-certificates,tini";

const FINISH: &str = include_str!("../assets/finish_root.sh");

/// Where a Debian machine keeps the authorities it trusts.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The root file system of a release, made first if it isn't cached (about a minute).
///
/// Packages come from `$SLURM_SERVE_MIRROR`, a Debian mirror's address; without it debootstrap takes its own default.
pub fn ensure_root(cache: &Cache, release: Release) -> Result<PathBuf> {
    let recipe = format!("{PACKAGES}\n{FINISH}\n{USERS:?}{MODELS_GROUP:?}");
    cache.entry(&format!("root-{release}"), &recipe, |folder| {
        debootstrap(release, folder)?;
        finish(folder).context("can't finish the root file system")
    })
}

fn debootstrap(release: Release, folder: &Path) -> Result<()> {
    let mirror = std::env::var("SLURM_SERVE_MIRROR")
        .ok()
        .filter(|mirror| !mirror.is_empty());
    let title = format!("Debian {} with Slurm {release}", release.suite());
    let mut command = Command::new("debootstrap");
    command
        .arg("--variant=minbase")
        .arg(format!("--include={PACKAGES}"))
        .arg(release.suite())
        .arg(folder)
        .args(mirror)
        .env("DEBIAN_FRONTEND", "noninteractive");
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // It mounts /proc and /sys in the target; killed half-way it would leave them on the machine.
                unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
                    .context("can't make a mount namespace (that needs root)")?;
                let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                    .context("can't make mounts private")?;
                follow(&title, command)
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn finish(folder: &Path) -> Result<()> {
    if Path::new(CA_BUNDLE).exists() {
        // A machine behind an inspecting proxy trusts one authority more; so must what is installed inside.
        fs::copy(CA_BUNDLE, folder.join(&CA_BUNDLE[1..])).context("can't copy the machine's authorities")?;
    }
    let mut argv = ["sh", "-c", FINISH, "sh"].map(String::from).to_vec();
    argv.extend(USERS.iter().map(|(name, uid)| format!("{name}:{uid}")));
    argv.push("--".into());
    argv.push(format!("{}:{}", MODELS_GROUP.0, MODELS_GROUP.1));
    argv.push(USERS[0].0.into());
    run_in_root(folder, Vec::new(), "users and folders", &argv)
}

/// Runs a command as root inside a root file system, with the machine's network and its settings for package
/// installers, and shows what it says.
pub(crate) fn run_in_root(root: &Path, mut binds: Vec<Bind>, title: &str, argv: &[String]) -> Result<()> {
    let resolver = Path::new("/etc/resolv.conf");
    if resolver.exists() {
        binds.push(Bind {
            from: resolver.into(),
            to: resolver.into(),
            writable: false,
        });
    }
    let birth = Birth {
        root: Root::Direct(root),
        point: root,
        host_name: "lab-build",
        own_network: false,
        gpus: 0,
        binds,
    };
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                birth.enter()?;
                let mut command = Command::new("/bin/sh");
                command
                    .args(["-ec", "mount -t proc proc /proc; exec \"$@\"", "sh"])
                    .args(argv)
                    .env_clear()
                    .envs(installer_environment())
                    .env(
                        "PATH",
                        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    )
                    .env("HOME", "/root")
                    // Whatever is cached on the way must not stay in the root.
                    .env("XDG_CACHE_HOME", "/tmp/cache")
                    .env("LANG", "C.UTF-8");
                follow(title, command)
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Proxies, indexes and authorities that the machine's own installers use.
fn installer_environment() -> Vec<(String, String)> {
    let mut found: Vec<_> = std::env::vars()
        .filter(|(name, _)| {
            let lower = name.to_ascii_lowercase();
            // Local folders of packages aren't there inside.
            let inside = name != "PIP_FIND_LINKS" && name != "UV_FIND_LINKS";
            inside && (lower.ends_with("_proxy") || name.starts_with("PIP_") || name.starts_with("UV_"))
        })
        .collect();
    for name in [
        "SSL_CERT_FILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ] {
        found.push((name.into(), CA_BUNDLE.into()));
    }
    found
}

/// Runs a long command and says every few seconds what it is at; its last lines are in the error if it fails.
fn follow(title: &str, mut command: Command) -> Result<()> {
    let (reader, writer) = std::io::pipe().context("can't make a pipe")?;
    progress(title);
    let start = Instant::now();
    let program = command.get_program().to_owned();
    let spawned = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let program = program.display();
            bail!("{program} is not installed on this machine: apt-get install {program}")
        }
        Err(error) => return Err(error).with_context(|| format!("can't run {}", program.display())),
    };
    // The command holds the pipe's other end; reading ends with it.
    drop(command);
    let mut last = VecDeque::new();
    let mut said = Instant::now();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.with_context(|| format!("can't read what {} says", program.display()))?;
        // Of a progress bar only what it showed last.
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end().rsplit('\r').next().unwrap_or_default().to_owned();
        if line.is_empty() {
            continue;
        }
        if said.elapsed() > Duration::from_secs(5) || line.starts_with("== ") {
            let seconds = start.elapsed().as_secs();
            progress(&format!("  {seconds:3} s  {}", line.trim_start_matches("== ")));
            said = Instant::now();
        }
        if last.len() == 15 {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child
        .wait()
        .with_context(|| format!("can't wait for {}", program.display()))?;
    if !status.success() {
        let last = last.make_contiguous().join("\n  ");
        bail!(
            "{title}: {} ended with {status}; it said last:\n  {last}",
            program.display()
        );
    }
    progress(&format!("  {:3} s  done", start.elapsed().as_secs()));
    Ok(())
}
