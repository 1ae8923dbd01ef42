//! `sserve selftest` as an admin runs it: every row that a lab can show passes, and what is broken fails.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serve_e2e::{Site, has};
use serve_lab::Node;

use crate::Test;

/// All of them.
pub const TESTS: &[Test] = &[
    ("the_selftest_passes_as_root_on_the_node", as_root),
    (
        "the_selftest_of_a_user_elsewhere_skips_what_it_cannot_see",
        as_user,
    ),
    ("the_selftest_fails_where_nothing_is_served", nothing_served),
];

/// What stands for `systemctl restart slurm-serve-agent`: there is no systemd in a lab.
pub const RESTART: &str = "--restart-agent=pkill -f '^slurm-serve agent$'; \
    setsid slurm-serve agent >>/var/log/slurm-serve-agent.log 2>&1 </dev/null & \
    for i in $(seq 100); do sserve health 2>/dev/null && exit 0; sleep 0.1; done; exit 1";

/// Verdict and evidence of each row.
pub type Rows = BTreeMap<String, (String, String)>;

/// Exit code, and the rows.
pub fn selftest(node: &Node, user: &str, more: &[&str]) -> Result<(i32, Rows)> {
    let argv = [&["sserve", "--json", "selftest"], more].concat();
    let output = node
        .command(user, argv)
        .limit(Duration::from_secs(300))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let rows = text.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        Ok((word("row"), (word("verdict"), word("evidence"))))
    });
    let rows: Result<Rows> = rows.collect();
    let code = output.status.code().context("a signal")?;
    Ok((code, rows.with_context(|| format!("{text}{said}"))?))
}

fn as_root(site: &Site) -> Result<()> {
    let node = site.node(1);
    let (code, rows) = selftest(node, "root", &["--user", "alice", RESTART, "--", "--mem=500"])?;
    // The site puts one of its own in place of the one that the restart left.
    node.command("root", ["pkill", "-f", "^slurm-serve agent$"])
        .run()?;
    ensure!(
        code == 0 && rows.len() == 15,
        "{code} {rows:#?}\n{}",
        site.agent_log(node)
    );
    for (row, (verdict, evidence)) in &rows {
        ensure!(verdict == "PASS", "{row} {verdict}: {evidence}");
    }
    has(
        &rows["devices"].1,
        &["engine: nvidia0;", "refused to both: nvidia1"],
    )?;
    has(&rows["cgroup"].1, &["cgroup v1", "engine in its step_0"])?;
    has(&rows["kill-wait"].1, &["was answered", "KillWait is 20s"])?;
    // Its recipe and its folder have gone with it.
    let left = node
        .command(
            "alice",
            [
                "sh",
                "-c",
                "ls -d ~/sserve-selftest-* ~/.config/slurm-serve/models.d/*; true",
            ],
        )
        .run()?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

fn as_user(site: &Site) -> Result<()> {
    let target = site.node(2).name();
    let rows = "serve,devices,exit-code,server-step,engine-killed,agent-restart,left-overs,node-state";
    let more = [
        "--node",
        target,
        "--only",
        rows,
        "--restart-agent",
        "--",
        "--mem=500",
    ];
    let (code, rows) = selftest(site.lab.login(), "bob", &more)?;
    ensure!(code == 0, "{code} {rows:#?}");
    for row in ["serve", "devices", "exit-code", "server-step", "node-state"] {
        ensure!(rows[row].0 == "PASS", "{row}: {rows:#?}");
    }
    for row in ["engine-killed", "agent-restart", "left-overs"] {
        ensure!(
            rows[row].0 == "SKIP" && rows[row].1.contains(target),
            "{row}: {rows:#?}"
        );
    }
    Ok(())
}

fn nothing_served(site: &Site) -> Result<()> {
    let node = site.node(1);
    site.end_agent(node, nix::sys::signal::Signal::SIGKILL)?;
    site.set_agent_wait(node, 1)?;
    let (code, rows) = selftest(
        node,
        "root",
        &["--user", "alice", "--only", "serve,scancel", "--", "--mem=500"],
    )?;
    ensure!(code == 1, "{code} {rows:#?}");
    ensure!(
        rows["serve"].0 == "FAIL" && rows["scancel"].0 == "SKIP",
        "{rows:#?}"
    );
    has(&rows["serve"].1, &["is FAILED", "has not answered"])?;
    // A recipe of the user's own is not touched.
    let own = "/home/alice/.config/slurm-serve/models.d/selftest.toml";
    node.command(
        "alice",
        [
            "sh",
            "-c",
            &format!("mkdir -p $(dirname {own}); echo 'source = \"/x\"' > {own}"),
        ],
    )
    .run()?;
    let output = node
        .command("root", ["sserve", "selftest", "--user", "alice"])
        .output()?;
    let text = node.read_text(own);
    node.command("alice", ["rm", own]).run()?;
    ensure!(text? == "source = \"/x\"\n");
    has(&String::from_utf8_lossy(&output.stderr), &["move it away first"])
}
