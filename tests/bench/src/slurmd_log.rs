//! The helpers that slurmd starts for a plugin's prolog and epilog, timed by slurmd's own log (in milliseconds).
//!
//! At `debug2` it says (prep_script_slurmd.c, spank.c of 24.11):
//!
//! ```text
//! … calling /usr/sbin/slurmstepd spank prolog         the helper is started
//! … spank: opening plugin stack /etc/slurm/plugstack.conf     by the helper: what follows is the plugin's
//! … spank: spank_serve.so: job_prolog = 0             the hook has returned
//! … spank/prolog returned success                     slurmd has seen the helper's end
//! ```

use std::time::Duration;

use anyhow::{Context, Result};
use serve_lab::{Node, wait_for};

const LOG: &str = "/var/log/slurm/slurmd.log";
const CONF: &str = "/etc/slurm/slurm.conf";

/// One helper, in ms.
#[derive(Debug, Clone, PartialEq)]
pub struct Helper {
    /// `prolog` or `epilog`.
    pub hook: &'static str,
    /// From its start to slurmd's having seen its end.
    pub whole: f64,
    /// Of these: loading the plugin and calling it.
    pub plugin: f64,
}

/// Makes a node's slurmd log at `debug2`, or as before.
pub fn say_more(node: &Node, more: bool) -> Result<()> {
    let (from, to) = match more {
        true => ("SlurmdDebug=verbose", "SlurmdDebug=debug2"),
        false => ("SlurmdDebug=debug2", "SlurmdDebug=verbose"),
    };
    let conf = node.read_text(CONF)?;
    anyhow::ensure!(conf.contains(from), "{CONF} has no {from}");
    let before = length(node)?;
    node.install_file(CONF, conf.replace(from, to), 0o644)?;
    let slurmd = node
        .processes()?
        .into_iter()
        .find(|process| process.name == "slurmd")
        .with_context(|| format!("no slurmd on {}", node.name()))?;
    slurmd.process.signal(nix::sys::signal::Signal::SIGHUP)?;
    wait_for(
        Duration::from_secs(10),
        "slurmd to have read its settings",
        || Ok(read(node, before)?.contains("slurmd started on").then_some(())),
    )
}

/// How long the log is now.
pub fn length(node: &Node) -> Result<usize> {
    Ok(node.read(LOG)?.len())
}

/// The log from `offset` on.
pub fn read(node: &Node, offset: usize) -> Result<String> {
    let bytes = node.read(LOG)?;
    let rest = bytes.get(offset..).context("slurmd's log got shorter")?;
    Ok(String::from_utf8_lossy(rest).into_owned())
}

/// The helpers that are told of from beginning to end.
pub fn helpers(log: &str) -> Vec<Helper> {
    let mut found = Vec::new();
    for hook in ["prolog", "epilog"] {
        let (mut start, mut opened, mut plugin) = (None, None, None);
        for line in log.lines() {
            let Some(now) = stamp(line) else { continue };
            if line.contains(&format!("slurmstepd spank {hook}")) {
                (start, opened, plugin) = (Some(now), None, None);
            } else if opened.is_none() && line.contains("opening plugin stack") && !line.contains("] [") {
                opened = Some(now);
            } else if line.contains(&format!(": job_{hook} = 0")) {
                plugin = opened.map(|opened| now - opened);
            } else if line.contains(&format!("spank/{hook} returned success"))
                && let (Some(start), Some(plugin)) = (start.take(), plugin)
            {
                let whole = now - start;
                found.push(Helper { hook, whole, plugin });
            }
        }
    }
    found
}

/// Milliseconds of the day: `[2026-12-01T00:40:03.079] …`. A run across midnight loses a helper or gains a wrong sign, which is found out.
fn stamp(line: &str) -> Option<f64> {
    let time = line.strip_prefix('[')?.split(']').next()?.split('T').nth(1)?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Some(((hours * 60.0 + minutes) * 60.0 + seconds) * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_is_found_in_slurmds_log() {
        let log = "\
[2026-12-01T00:40:03.079] debug:  prep/script: _run_spank_job_script: calling /usr/sbin/slurmstepd spank prolog
[2026-12-01T00:40:03.080] [1.0] debug:  spank: opening plugin stack /etc/slurm/plugstack.conf
[2026-12-01T00:40:03.085] debug:  spank: opening plugin stack /etc/slurm/plugstack.conf
[2026-12-01T00:40:03.086] debug:  spank: opening plugin stack /etc/slurm/plugstack.conf.d/serve.conf
[2026-12-01T00:40:03.090] debug2: spank: spank_serve.so: job_prolog = 0
[2026-12-01T00:40:03.100] debug2: prep/script: _run_spank_job_script: spank/prolog returned success, response=
[2026-12-01T00:40:03.200] debug:  calling /usr/sbin/slurmstepd spank epilog
";
        let found = helpers(log);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].hook, "prolog");
        assert!((found[0].whole - 21.0).abs() < 1e-6 && (found[0].plugin - 5.0).abs() < 1e-6);
    }
}
