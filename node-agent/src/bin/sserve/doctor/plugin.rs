//! The plugin: what Slurm would load, and what the running slurmd has loaded.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use procfs::process::{MMapPath, Process};
use slurm_serve::plugin_file::{
    self, DEFAULT_SOCKET, Finding, HostPaths, Level, Stacked, host_paths, host_version, product_version,
};

use super::finding::Findings;
use super::host::{Host, Role, program};

const CHECK: &str = "plugin";
const LOADED: &str = "slurmd";

/// Looks at the file, and at slurmd.
pub fn look(host: &Host, found: &mut Findings) {
    let paths = host.slurm.as_ref().map_or_else(host_paths, HostPaths::from);
    let report = plugin_file::check(&paths, host_version());
    for finding in &report.findings {
        told(finding, found);
    }
    for line in report.stack.iter().filter(|line| !line.ours) {
        // Another's plugin: only what would keep the whole stack from loading is our concern.
        let bad = line
            .findings
            .iter()
            .filter(|finding| finding.level == Level::Bad && line.required);
        for finding in bad {
            found.fail(
                CHECK,
                format!("{}: required, and {}", line.place, finding.text),
                "with this sbatch and slurmd fail altogether",
            );
        }
    }
    let Some(ours) = report.ours() else { return };
    found.ok(CHECK, format!("named at {}", ours.place));
    for finding in &ours.findings {
        told(finding, found);
    }
    version(&ours.plugin, found);
    arguments(ours, host, found);
    match (&host.slurmd, host.role) {
        (Some(slurmd), _) => loaded(slurmd, &ours.plugin, host.is_root, found),
        (None, Role::Compute) => found.fail(LOADED, "no slurmd runs here", "systemctl start slurmd"),
        (None, Role::Login) => {}
    }
}

/// Its texts hold their remedy.
fn told(finding: &Finding, found: &mut Findings) {
    match finding.level {
        Level::Ok => found.ok(CHECK, &finding.text),
        Level::Warn => found.warn(CHECK, &finding.text, ""),
        Level::Bad => found.fail(CHECK, &finding.text, ""),
    }
}

fn version(file: &Path, found: &mut Findings) {
    let ours = env!("CARGO_PKG_VERSION");
    match product_version(file) {
        Ok(version) if version == ours => {
            found.ok(CHECK, format!("of slurm-serve {version}, as this sserve"))
        }
        Ok(version) => found.warn(
            CHECK,
            format!("of slurm-serve {version}, and this sserve is {ours}"),
            "install both from one build (docs/install.md, Upgrade)",
        ),
        Err(error) => found.warn(
            CHECK,
            format!("tells no version: {error}"),
            "install it from the build of this sserve",
        ),
    }
}

/// What the plugin is told must be what the agent is told.
fn arguments(ours: &Stacked, host: &Host, found: &mut Findings) {
    let agent = &host.config.agent;
    let socket = Path::new(ours.argument("socket").unwrap_or(DEFAULT_SOCKET));
    if socket != agent.socket {
        found.fail(
            CHECK,
            format!(
                "it looks for the agent at {}, and agent.socket is {}",
                socket.display(),
                agent.socket.display()
            ),
            format!("write socket={} at {}", agent.socket.display(), ours.place),
        );
    }
    let recipes = Path::new(ours.argument("recipes").unwrap_or("/etc/slurm-serve/models.d"));
    if recipes != agent.recipes {
        found.warn(
            CHECK,
            format!(
                "sbatch checks names against {}, the agent serves {}",
                recipes.display(),
                agent.recipes.display()
            ),
            format!("write recipes={} at {}", agent.recipes.display(), ours.place),
        );
    }
}

/// slurmd learns at its start whether there are prolog and epilog hooks; the jobs' own processes load the file anew each time.
fn loaded(slurmd: &Process, plugin: &Path, is_root: bool, found: &mut Findings) {
    let pid = slurmd.pid;
    if !is_root {
        return started_after(slurmd, plugin, found);
    }
    if let Some((file, true)) = program(pid) {
        found.warn(
            LOADED,
            format!("pid {pid} still runs the {} of before an upgrade", file.display()),
            "systemctl restart slurmd; running jobs go on",
        );
    }
    let maps = match slurmd.maps() {
        Ok(maps) => maps,
        Err(error) => return found.skip(LOADED, format!("pid {pid} can't be looked into: {error}")),
    };
    let shown = plugin.display().to_string();
    let mut names = maps.iter().filter_map(|map| match &map.pathname {
        MMapPath::Path(path) => Some(path.to_string_lossy().into_owned()),
        _ => None,
    });
    match names.find(|name| name.trim_end_matches(" (deleted)") == shown) {
        Some(name) if name.ends_with(" (deleted)") => found.ok(
            LOADED,
            format!("pid {pid} has the plugin loaded, the file before this one; jobs use the new one"),
        ),
        Some(_) => found.ok(LOADED, format!("pid {pid} has the plugin loaded")),
        None => found.fail(
            LOADED,
            format!("pid {pid} has not loaded the plugin: its jobs run without prolog and epilog hooks"),
            "systemctl restart slurmd (a reconfigure does not do it); running jobs go on",
        ),
    }
}

/// What a user can tell: slurmd must be younger than the file.
fn started_after(slurmd: &Process, plugin: &Path, found: &mut Findings) {
    let pid = slurmd.pid;
    let started = slurmd
        .stat()
        .ok()
        .map(|stat| stat.starttime / procfs::ticks_per_second());
    let started = started
        .zip(procfs::boot_time_secs().ok())
        .map(|(since, boot)| i64::try_from(boot + since).unwrap_or(i64::MAX));
    let installed = plugin.metadata().ok().map(|about| about.ctime());
    match (started, installed) {
        (Some(started), Some(installed)) if started < installed => found.skip(
            LOADED,
            format!("pid {pid} started before the plugin's file was put in place; root sees whether it has loaded one"),
        ),
        _ => found.skip(LOADED, format!("root sees whether pid {pid} has loaded the plugin")),
    }
}
