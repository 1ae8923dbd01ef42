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
    groups(site)?;
    crate::until("every scope to be ended", || {
        Ok(
            root("find /sys/fs/cgroup/pids/$(hostname)_slurm-scopes -mindepth 1 -type d -not -name *-try-*")?
                .trim()
                .is_empty(),
        )
    })
}

/// The client has its owner's groups, and none of root's.
fn groups(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=stub"], "sserve hold")?;
    job.wait_model("ready")?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", job.srun_client(node)?))?;
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let sorted = |text: &str| -> Vec<String> {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    let wanted = node.command("alice", ["id", "-G"]).run()?;
    ensure!(
        sorted(groups.unwrap_or_default()) == sorted(&wanted),
        "{groups:?}, not {wanted}"
    );
    site.say("alice", &["scancel", &job.id.to_string()], "", &[])?;
    job.wait_end()?;
    Ok(())
}
