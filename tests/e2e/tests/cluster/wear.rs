//! What a cluster goes through in a week: daemons restarted, cables pulled, jobs requeued. Models bear it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serve_e2e::{Job, Site};

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    (
        "a_gateway_that_was_restarted_knows_all_models_again",
        gateway_restart,
    ),
    ("a_restart_of_slurmd_leaves_models_running", slurmd_restart),
    (
        "a_node_that_is_cut_off_leaves_the_gateway_and_comes_back",
        cut_off,
    ),
    ("a_requeued_job_gets_a_new_server", requeued),
    ("all_nodes_of_a_job_reach_its_model", two_nodes),
];

fn listed(site: &Site) -> Result<bool> {
    Ok(site.models()?.contains(&"stub".to_owned()))
}

/// A job on the first node with a model that the gateway has.
fn served<'a>(site: &'a Site, arguments: &[&str]) -> Result<Job<'a>> {
    let mut all = vec!["-w", site.node(1).name(), "--serve-model=stub"];
    all.extend(arguments);
    let job = site.sbatch("alice", &all, "sleep 300")?;
    job.wait_model("ready")?;
    until("the model at the gateway", || listed(site))?;
    Ok(job)
}

fn gateway_restart(site: &Site) -> Result<()> {
    let _job = served(site, &[])?;
    site.stop_gateway()?;
    site.start_gateway()?;
    until("the model at the new gateway", || listed(site))?;
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 200, "{status}: {body}");
    Ok(())
}

fn slurmd_restart(site: &Site) -> Result<()> {
    let job = served(site, &[])?;
    let engine = job.stub()?.process;
    site.node(1).restart_slurmd()?;
    ensure!(engine.is_alive() && listed(site)?, "{}", job.explain());
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 200, "{status}: {body}");
    Ok(())
}

fn cut_off(site: &Site) -> Result<()> {
    let job = served(site, &[])?;
    let engine = job.stub()?.process;
    site.node(1).cut()?;
    let gone = until("the model to leave the gateway", || Ok(!listed(site)?));
    site.node(1).restore()?;
    gone?;
    until("the model back at the gateway", || listed(site))?;
    ensure!(engine.is_alive(), "it ran all the time");
    Ok(())
}

fn requeued(site: &Site) -> Result<()> {
    let job = served(site, &["--requeue"])?;
    let before = job.model()?;
    let login = site.lab.login();
    let id = job.id.to_string();
    login.command("alice", ["scontrol", "requeue", &id]).run()?;
    // Slurm lets a requeued job wait for two minutes, unless told otherwise.
    until("the job to be pending again", || Ok(job.state()? == "PENDING"))?;
    let mut told: Option<Instant> = None;
    until("another model to be ready", || {
        // 22.05 forgets what it was told before the epilog was through, and acts upon none of many in a row.
        if job.state()? == "PENDING" && told.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
            told = Some(Instant::now());
            let now = ["scontrol", "update", &format!("JobId={id}"), "StartTime=now"];
            site.lab.controller().command("root", now).run()?;
        }
        let Ok(model) = job.model() else { return Ok(false) };
        Ok(model["state"] == "ready" && model["generation"] != before["generation"])
    })?;
    until("the model at the gateway", || listed(site))?;
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 200, "{status}: {body}");
    Ok(())
}

fn two_nodes(site: &Site) -> Result<()> {
    let script = r#"srun -N2 -n2 sh -c 'curl -sS -o /dev/null -w "%{http_code} on $SLURMD_NODENAME\n" -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"'"#;
    let job = site.sbatch("alice", &["--serve-model=stub", "-N2"], script)?;
    let state = job.wait_end()?;
    let output = job.output();
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    for node in site.lab.compute() {
        ensure!(output.contains(&format!("200 on {}", node.name())), "{output}");
    }
    Ok(())
}
