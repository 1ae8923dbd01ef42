//! The birth of a set of namespaces over a root file system: for a node, and for a command run in a bare root.
//!
//! Done on a thread, not in a child: `unshare` works on the calling thread, so every step is ordinary checked Rust.
//! The order:
//!
//! 1. leave the machine's namespaces (mounts made private first: nothing may travel back);
//! 2. lay out the root: overlay, binds, /dev, /sys, /run, /tmp;
//! 3. pivot into it, so that `/` is the node's from here on;
//! 4. let the caller write its files;
//! 5. start the first process, the PID namespace's init, which mounts /proc (only one born in the new PID namespace
//!    can). When it ends, the kernel ends every other process there, and mounts and interfaces go with the last.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{chdir, pivot_root, sethostname};

/// What becomes `/`.
pub(crate) enum Root<'a> {
    /// This folder, its changes kept in memory and gone with the namespace.
    Overlay(&'a Path),
    /// This folder itself, written to.
    Direct(&'a Path),
}

/// Something of the machine that is seen inside.
pub(crate) struct Bind {
    pub from: PathBuf,
    /// Absolute, inside.
    pub to: PathBuf,
    pub writable: bool,
}

/// What is to be born.
pub(crate) struct Birth<'a> {
    pub root: Root<'a>,
    /// An empty folder of the machine to mount on.
    pub point: &'a Path,
    pub host_name: &'a str,
    /// A network namespace of its own, empty but for the loopback; else the machine's.
    pub own_network: bool,
    pub gpus: u16,
    pub binds: Vec<Bind>,
}

impl Birth<'_> {
    /// Steps 1 to 3 on the calling thread, which must end soon after and is good for step 4 and one child.
    pub(crate) fn enter(&self) -> Result<()> {
        let mut flags = CloneFlags::CLONE_FS
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWPID;
        if self.own_network {
            flags |= CloneFlags::CLONE_NEWNET;
        }
        unshare(flags).context("can't make namespaces (that needs root)")?;
        step(
            "make mounts private",
            mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE),
        )?;
        sethostname(self.host_name).context("can't set the host name")?;
        let root = self.lay_root()?;
        self.fill(&root)?;
        chdir(&root).with_context(|| format!("can't enter {}", root.display()))?;
        // Old root stacked over the new one and then dropped: needs no folder to put it (pivot_root(2)).
        pivot_root(".", ".").context("can't make the root the root")?;
        umount2(".", MntFlags::MNT_DETACH).context("can't let go of the machine's root")?;
        chdir("/").context("can't enter the new root")
    }

    fn lay_root(&self) -> Result<PathBuf> {
        match self.root {
            Root::Direct(root) => {
                step(
                    "bind the root",
                    mount(Some(root), self.point, NONE, MsFlags::MS_BIND, NONE),
                )?;
                plain(self.point, true)?;
                Ok(self.point.to_path_buf())
            }
            Root::Overlay(lower) => {
                let lower = lower.to_str().filter(|text| !text.contains([':', ',', '\\']));
                let Some(lower) = lower else {
                    bail!(
                        "overlayfs takes no `:`, `,` or `\\` in a path: set SLURM_SERVE_CACHE to a plainer one"
                    )
                };
                let size = Some("mode=0755,size=50%");
                step(
                    "mount memory",
                    mount(Some("lab"), self.point, Some("tmpfs"), MsFlags::empty(), size),
                )?;
                let [upper, work, root] = ["upper", "work", "root"].map(|name| self.point.join(name));
                for folder in [&upper, &work, &root] {
                    fs::create_dir(folder).with_context(|| format!("can't make {}", folder.display()))?;
                }
                let data = format!(
                    "lowerdir={lower},upperdir={},workdir={}",
                    upper.display(),
                    work.display()
                );
                step(
                    "mount the overlay (does this kernel have overlayfs?)",
                    mount(
                        Some("lab"),
                        &root,
                        Some("overlay"),
                        MsFlags::empty(),
                        Some(data.as_str()),
                    ),
                )?;
                Ok(root)
            }
        }
    }

    fn fill(&self, root: &Path) -> Result<()> {
        // The machine's cgroups are wanted inside, so /sys as a whole, recursively. A fresh sysfs would hide them.
        let sys = root.join("sys");
        step(
            "bind /sys",
            mount(Some("/sys"), &sys, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE),
        )?;
        memory(&root.join("run"), 0o755, "64m")?;
        memory(&root.join("tmp"), 0o1777, "50%")?;
        devices(&root.join("dev"), self.gpus)?;
        for bind in &self.binds {
            let to = root.join(bind.to.strip_prefix("/").unwrap_or(&bind.to));
            mount_point(&bind.from, &to)?;
            step(
                &format!("bind {} to {}", bind.from.display(), bind.to.display()),
                mount(Some(&bind.from), &to, NONE, MsFlags::MS_BIND, NONE),
            )?;
            plain(&to, bind.writable)?;
        }
        Ok(())
    }
}

const NONE: Option<&'static str> = None;

fn step(what: &str, result: nix::Result<()>) -> Result<()> {
    result.with_context(|| format!("can't {what}"))
}

/// Takes off what the machine's own mount may carry (/run is often noexec), and write access where not wanted.
fn plain(point: &Path, writable: bool) -> Result<()> {
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    if !writable {
        flags |= MsFlags::MS_RDONLY;
    }
    step(
        &format!("remount {}", point.display()),
        mount(NONE, point, NONE, flags, NONE),
    )
}

/// An empty file or folder to bind onto, of the same kind as what is bound.
fn mount_point(from: &Path, to: &Path) -> Result<()> {
    let kind = fs::metadata(from).with_context(|| format!("{} is wanted in a node", from.display()))?;
    let made = if kind.is_dir() {
        fs::create_dir_all(to)
    } else {
        fs::create_dir_all(to.parent().unwrap_or(to)).and_then(|()| {
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(to)
                .map(drop)
        })
    };
    made.with_context(|| format!("can't make {}", to.display()))
}

fn memory(point: &Path, mode: u32, size: &str) -> Result<()> {
    let data = format!("mode={mode:o},size={size}");
    fs::create_dir_all(point).with_context(|| format!("can't make {}", point.display()))?;
    step(
        &format!("mount memory on {}", point.display()),
        mount(
            Some("lab"),
            point,
            Some("tmpfs"),
            MsFlags::MS_NOSUID,
            Some(data.as_str()),
        ),
    )
}

/// A /dev of the node's own. Its GPUs are device files nobody stands behind: an allowed one opens with ENXIO, one
/// that the job's device cgroup refuses with EPERM.
fn devices(dev: &Path, gpus: u16) -> Result<()> {
    memory(dev, 0o755, "1m")?;
    let plain = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ]
    .map(|(name, major, minor)| (name.to_owned(), major, minor));
    let stand_ins = (0..gpus).map(|n| (format!("nvidia{n}"), 195, u64::from(n)));
    for (name, major, minor) in plain.into_iter().chain(stand_ins) {
        let path = dev.join(name);
        mknod(
            &path,
            SFlag::S_IFCHR,
            Mode::from_bits_truncate(0o666),
            makedev(major, minor),
        )
        .with_context(|| format!("can't make the device {}", path.display()))?;
        // The umask had its say in mknod.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name)).with_context(|| format!("can't link /dev/{name}"))?;
    }
    memory(&dev.join("shm"), 0o1777, "50%")?;
    let pts = dev.join("pts");
    fs::create_dir(&pts)?;
    let data = Some("newinstance,ptmxmode=0666,mode=0620,gid=5");
    step(
        "mount /dev/pts",
        mount(Some("lab"), &pts, Some("devpts"), MsFlags::MS_NOSUID, data),
    )
}

/// Writes a file inside, from the thread that entered; makes missing folders.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // A new file beside it and a rename: a program that runs from the old one isn't disturbed.
    let mut new = path.as_os_str().to_owned();
    new.push(OsStr::new(".new"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&new, bytes))
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("can't write {}", path.display()))
}
