//! The real LiteLLM and the real sglang-router beside a real Slurm: a job's model is in both while it answers, whatever becomes of its agent, its
//! node, or of them.
//!
//! They run on this machine, in the login node's network. The agents keep LiteLLM; the gateway keeps the router and a file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::outside::{LITELLM, MASTER, Outside, ROUTER};
use serve_e2e::{Job, Options, Site, has};
use serve_lab::{Lab, Node, wait_for};

/// A node's part of the settings. Sweeping is quick, so that it is seen.
fn config(lab: &Lab, node: &Node) -> (String, String) {
    let proxies = lab.login().address();
    let agent = format!("advertise_address = {:?}\n", node.address());
    let tables = format!(
        r#"
[[catalogs]]
name = "litellm"
kind = "litellm"
kept_by = "agent"
url = "http://{proxies}:{LITELLM}"
key_file = "/etc/slurm-serve/litellm.key"
check_every = "2s"
sweep_every = "2s"
sweep_pause = "2s"

[[catalogs]]
name = "router"
kind = "router"
software = "sglang-router"
url = "http://{proxies}:{ROUTER}"
check_every = "2s"

[[catalogs]]
name = "scrape"
kind = "file"
format = "prometheus"
path = "/var/lib/slurm-serve-gateway/targets.json"
"#
    );
    (agent, tables)
}

fn shape(spec: serve_lab::LabSpec) -> serve_lab::LabSpec {
    spec.prepare(|node| {
        node.install_file("/etc/slurm-serve/litellm.key", MASTER, 0o600)?;
        let dir = "/var/lib/slurm-serve-gateway";
        node.command("root", ["install", "-d", "-o", "slurm-serve", dir])
            .run()?;
        Ok(())
    })
}

const SOON: Duration = Duration::from_secs(30);

fn serving<'a>(site: &'a Site, node: &Node) -> Result<Job<'a>> {
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=stub"], "sleep 600")?;
    job.wait_model("ready")?;
    Ok(job)
}

/// Asks the proxy all the time while `body` goes on; all answers.
fn while_asked<T>(proxy: &Outside<'_>, body: impl FnOnce() -> Result<T>) -> Result<(T, Vec<(u16, String)>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                answers.push(proxy.chat("stub")?);
            }
            Ok(answers)
        });
        let done = body();
        stop.store(true, Ordering::Relaxed);
        let answers: Result<_> = asking
            .join()
            .unwrap_or_else(|_| anyhow::bail!("the client broke"));
        Ok((done?, answers?))
    })
}

#[test]
fn a_jobs_model_is_in_every_catalog_while_it_answers() -> Result<()> {
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let site = Site::up_with(&options, shape)?;
    let folder = tempfile::tempdir()?;
    let played = play(&site, folder.path());
    let logs = || {
        format!(
            "{}\n{}",
            site.agent_log(site.node(1)),
            site.lab.login().tail("/var/log/slurm-serve-gateway.log", 20)
        )
    };
    played.with_context(logs)?;
    site.down()
}

fn play(site: &Site, folder: &std::path::Path) -> Result<()> {
    let (first, second) = (site.node(1), site.node(2));
    // The models are there before the catalogs are.
    let (one, two) = (serving(site, first)?, serving(site, second)?);
    let mut litellm = Outside::litellm(site, folder)?;
    let mut router = Outside::router(site)?;
    let file = || {
        site.lab
            .login()
            .read_text("/var/lib/slurm-serve-gateway/targets.json")
    };
    for proxy in [&litellm, &router] {
        proxy.has(&[one.id, two.id], SOON)?;
        let (status, body) = proxy.chat("stub")?;
        ensure!(status == 200, "{status} {body}");
    }
    has(&file()?, &[first.address(), second.address()])?;

    // One of two ends while both are asked: nobody notices.
    for proxy in [&litellm, &router] {
        let three = serving(site, first)?;
        proxy.has(&[one.id, two.id, three.id], SOON)?;
        let ((), answers) = while_asked(proxy, || {
            site.say("alice", &["scancel", &three.id.to_string()], "", &[])?;
            three.wait_end()?;
            proxy.has(&[one.id, two.id], SOON)
        })?;
        let lost: Vec<_> = answers.iter().filter(|(status, _)| *status != 200).collect();
        ensure!(
            lost.is_empty() && answers.len() > 3,
            "of {}: {lost:?}",
            answers.len()
        );
    }

    // An agent that dies takes nothing out, and the next one goes on.
    for proxy in [&litellm, &router] {
        let ((), answers) = while_asked(proxy, || {
            site.end_agent(first, Signal::SIGKILL)?;
            site.start_agent(first)?;
            one.wait_model("ready").map(drop)
        })?;
        ensure!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
        proxy.has(&[one.id, two.id], SOON)?;
    }

    // The proxies are restarted: one remembers, the other is told again. So is the gateway.
    litellm.restart()?;
    router.restart()?;
    site.stop_gateway()?;
    site.start_gateway()?;
    for proxy in [&litellm, &router] {
        proxy.has(&[one.id, two.id], SOON)?;
    }

    // LiteLLM has the recipe's alias, too.
    let root = |argv: &[&str]| site.lab.login().command("root", argv.iter().copied()).output();
    let listed = root(&["sserve", "catalog", "list"])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.lines().count() == 6, "{listed}");
    has(
        &listed,
        &["litellm: stub of job", "router: stub of job", first.name()],
    )?;
    let swept = root(&["sserve", "catalog", "sweep", "--pause", "1s", "--force"])?;
    let said = String::from_utf8_lossy(&swept.stdout).into_owned();
    ensure!(
        swept.status.success() && said.matches("its job is on its node").count() == 6,
        "{swept:?}"
    );

    // A node is lost without a word. The gateway's catalogs are rid of it within its lease; the agents' once Slurm says that it is down.
    second.power_cut()?;
    router.has(&[one.id], site.lease + Duration::from_secs(6))?;
    litellm.has(&[one.id, two.id], Duration::from_secs(1))?;
    let down = format!("NodeName={} State=DOWN Reason=lost", second.name());
    let down: Vec<&str> = ["scontrol", "update"]
        .into_iter()
        .chain(down.split(' '))
        .collect();
    site.lab.controller().command("root", down).run()?;
    litellm.has(&[one.id], Duration::from_secs(60))?;
    ensure!(!file()?.contains(second.address()), "{}", file()?);

    // The end of it all.
    site.say("alice", &["scancel", &one.id.to_string()], "", &[])?;
    one.wait_end()?;
    for proxy in [&litellm, &router] {
        proxy.has(&[], SOON)?;
    }
    wait_for(SOON, "the file to be empty", || {
        Ok((file()?.trim() == "[]").then_some(()))
    })
}
