//! The machine below: munge, clock, disks, and whether the agent starts with it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;
use slurm_serve::serve::Confine;
use slurm_serve::{clock, munge};

use super::finding::Findings;
use super::host::{Host, Role};

/// How long munged, or systemctl, may take.
const LIMIT: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

/// A credential made here and read here.
pub async fn munge(found: &mut Findings) {
    const CHECK: &str = "munge";
    let round = async {
        let word = munge::nonce();
        let credential = munge::encode(word.clone(), None).await?;
        let read = munge::decode(credential).await?;
        Ok::<_, munge::MungeError>((read.uid, read.text() == word))
    };
    match tokio::time::timeout(LIMIT, round).await {
        Ok(Ok((uid, true))) if uid == nix::unistd::geteuid().as_raw() => {
            found.ok(CHECK, format!("makes and reads credentials of uid {uid}"));
        }
        Ok(Ok((uid, _))) => found.fail(
            CHECK,
            format!("our credential came back as uid {uid}'s"),
            "see munged's log",
        ),
        Ok(Err(error)) => found.fail(CHECK, error.to_string(), "systemctl restart munge"),
        Err(_) => found.fail(
            CHECK,
            format!("no answer within {} s", LIMIT.as_secs()),
            "systemctl restart munge",
        ),
    }
}

/// Clock, disks, start at boot.
pub async fn look(host: &Host, found: &mut Findings) {
    match clock::is_synchronised() {
        Some(true) => found.ok("clock", "the kernel says that it is kept in time"),
        _ => found.warn(
            "clock",
            "the kernel does not know of anything that keeps it in time",
            "run chrony or another NTP client: munge refuses what is 5 minutes off, and jobs' ends are told by the clock",
        ),
    }
    if host.role == Role::Login {
        return;
    }
    let agent = &host.config.agent;
    space(
        "state",
        &agent.state_dir,
        64 * MIB,
        512 * MIB,
        "models can't be started without it",
        found,
    );
    space(
        "scratch",
        &agent.scratch_dir,
        512 * MIB,
        10_240 * MIB,
        "engines keep caches of compiled code there",
        found,
    );
    run_dir(&agent.run_dir, found);
    scratch(&agent.scratch_dir, found);
    srun_box(host, found).await;
    boot(found).await;
}

/// What would hold the srun client of a model that is started now.
async fn srun_box(host: &Host, found: &mut Findings) {
    const CHECK: &str = "srun_box";
    if !nix::unistd::geteuid().is_root() {
        return found.skip(CHECK, "only root can try it");
    }
    match Confine::choose(host.config.agent.srun_box, &host.node).await {
        Ok((confine, None)) => found.ok(CHECK, format!("srun clients are held by {}", confine.shown())),
        Ok((confine, Some(why))) => found.warn(
            CHECK,
            format!("srun clients are held by {}: {why}", confine.shown()),
            "an owner who takes his client over has the node's memory and processors beside his job; make scopes or cgroups work, or set \
             agent.srun_box = \"limits\" to accept it",
        ),
        Err(why) => found.fail(
            CHECK,
            why,
            "the agent does not start like this: set agent.srun_box = \"auto\"",
        ),
    }
}

fn space(check: &'static str, dir: &Path, least: u64, good: u64, why: &str, found: &mut Findings) {
    let shown = dir.display();
    // Before its first start the agent has made no folder yet: what counts is the disk.
    let Some(there) = dir.ancestors().find(|dir| dir.exists()) else {
        return;
    };
    let free = match statvfs(there) {
        Ok(about) => about.blocks_available() * about.fragment_size(),
        Err(error) => return found.skip(check, format!("{shown}: {error}")),
    };
    let text = format!("{shown}: {} MiB free", free / MIB);
    match free {
        _ if free < least => found.fail(check, text, format!("make room: {why}")),
        _ if free < good => found.warn(check, text, format!("make room soon: {why}")),
        _ => found.ok(check, text),
    }
}

fn run_dir(dir: &Path, found: &mut Findings) {
    const CHECK: &str = "run_dir";
    let shown = dir.display();
    match statfs(dir) {
        Ok(about) if about.filesystem_type() == TMPFS_MAGIC => {
            found.ok(CHECK, format!("{shown} is in memory"))
        }
        Ok(_) => found.fail(
            CHECK,
            format!("{shown} is no tmpfs: keys of models would be written to a disk"),
            "set agent.run_dir to a folder below /run",
        ),
        Err(error) => found.skip(CHECK, format!("{shown}: {error}")),
    }
}

/// Runners make their private folders there, as users.
fn scratch(dir: &Path, found: &mut Findings) {
    const CHECK: &str = "scratch";
    let shown = dir.display();
    let Ok(about) = dir.metadata() else {
        return found.fail(
            CHECK,
            format!("there is no {shown}"),
            "make it (mode 1777), or set agent.scratch_dir",
        );
    };
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o003 != 0o003 {
        found.fail(
            CHECK,
            format!("{shown} has mode {mode:o}: jobs, which run as users, can make no folders in it"),
            format!("chmod 1777 {shown}, or set agent.scratch_dir"),
        );
    } else if mode & 0o1000 == 0 || about.uid() != 0 {
        found.fail(
            CHECK,
            format!(
                "{shown} has mode {mode:o} and belongs to uid {}: users can remove what is others' there",
                about.uid()
            ),
            format!("chown root {shown} && chmod 1777 {shown}"),
        );
    } else if shown.to_string().len() > 60 {
        found.warn(
            CHECK,
            format!("{shown} is a long path: Unix sockets end at 108 bytes, so runners take /tmp"),
            "set agent.scratch_dir to a shorter one",
        );
    }
}

async fn boot(found: &mut Findings) {
    const CHECK: &str = "start at boot";
    if !Path::new("/run/systemd/system").is_dir() {
        return found.skip(CHECK, "this machine is not run by systemd");
    }
    let mut command = tokio::process::Command::new("systemctl");
    command
        .args(["is-enabled", "slurm-serve-agent.service"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    match tokio::time::timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => found.ok(CHECK, "slurm-serve-agent.service is enabled"),
        Ok(Ok(output)) => found.warn(
            CHECK,
            format!(
                "slurm-serve-agent.service is {}",
                match String::from_utf8_lossy(&output.stdout).trim() {
                    "" => "not there",
                    word => word,
                }
            ),
            "systemctl enable --now slurm-serve-agent",
        ),
        Ok(Err(error)) => found.skip(CHECK, format!("systemctl: {error}")),
        Err(_) => found.skip(
            CHECK,
            format!("systemctl did not answer within {} s", LIMIT.as_secs()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn too_little_room_is_told_by_how_little() {
        let free = |least, good| {
            let mut found = Findings::default();
            space(
                "state",
                Path::new("/tmp/not/there/yet"),
                least,
                good,
                "why",
                &mut found,
            );
            found.verdict("state")
        };
        assert_eq!(free(0, 0), Some(Verdict::Ok));
        assert_eq!(free(0, u64::MAX), Some(Verdict::Warn));
        assert_eq!(free(u64::MAX, u64::MAX), Some(Verdict::Fail));
    }

    #[test]
    fn scratch_must_be_everybodys_and_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let look = |mode| {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let mut found = Findings::default();
            scratch(folder.path(), &mut found);
            found.verdict("scratch")
        };
        assert_eq!(look(0o755), Some(Verdict::Fail));
        assert_eq!(look(0o777), Some(Verdict::Fail));
        if nix::unistd::geteuid().is_root() {
            assert_eq!(look(0o1777), None);
        }
    }
}
