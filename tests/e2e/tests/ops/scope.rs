//! Where systemd is, srun clients are held by scopes of its. A lab has none: two scripts stand where its commands do.

use anyhow::{Result, ensure};
use serve_e2e::{Site, has};

use crate::Test;
use crate::selftest::{RESTART, selftest};

/// All of them.
pub const TESTS: &[Test] = &[("where_systemd_is_a_scope_holds_the_srun_client", held)];

fn held(site: &Site) -> Result<()> {
    let node = site.node(1);
    let root = |script: &str| node.command("root", ["sh", "-c", script]).run();
    node.install_file(
        "/usr/local/bin/systemd-run",
        include_str!("systemd-run.sh"),
        0o755,
    )?;
    node.install_file("/usr/local/bin/systemctl", include_str!("systemctl.sh"), 0o755)?;
    root("mkdir -p /run/systemd/system")?;
    let tested = through(site, &root);
    root("rm -r /run/systemd/system /usr/local/bin/systemd-run /usr/local/bin/systemctl")?;
    // The site puts one of its own in place of the one that the restart left, which knows no scopes.
    root("pkill -f '^slurm-serve agent$'")?;
    tested
}

/// Scopes that were tried at starts of the agent end by themselves where there is a systemd.
fn through(site: &Site, root: &dyn Fn(&str) -> Result<String>) -> Result<()> {
    let node = site.node(1);
    let only = [
        "--user",
        "alice",
        "--only=serve,agent-restart,srun-box,left-overs",
        RESTART,
        "--",
        "--mem=500",
    ];
    root(RESTART.trim_start_matches("--restart-agent="))?;
    has(
        &site.agent_log(node),
        &["srun clients are held by a scope of systemd's"],
    )?;
    let (code, rows) = selftest(node, "root", &only)?;
    ensure!(code == 0, "{rows:#?}\n{}", site.agent_log(node));
    let (verdict, evidence) = &rows["srun-box"];
    ensure!(verdict == "PASS", "{rows:#?}");
    has(evidence, &["/slurm-serve-srun-", ".scope"])?;
    let told = node.read_text("/var/log/systemd-run.log")?;
    has(
        &told,
        &[
            "--property=MemoryMax=",
            "--property=TasksMax=",
            "--property=DevicePolicy=closed",
        ],
    )?;
    ensure!(!told.contains("NONCE"), "a secret on a command line: {told}");
    crate::until("every scope to be ended", || {
        Ok(
            root("find /sys/fs/cgroup/pids/$(hostname)_slurm-scopes -mindepth 1 -type d -not -name *-try-*")?
                .trim()
                .is_empty(),
        )
    })
}
