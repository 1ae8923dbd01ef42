//! Models that are lost and started again: what the job holds of them stays good.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use serve_e2e::{Job, Site};

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    (
        "a_lost_engine_comes_back_at_the_same_address_with_the_same_key",
        engine,
    ),
    (
        "a_lost_runner_comes_back_in_another_step_at_the_same_address",
        runner,
    ),
    ("an_agent_killed_between_two_attempts_makes_the_next_one", agent),
    (
        "a_job_is_cancelled_only_when_its_model_is_lost_for_good",
        for_good,
    ),
];

/// Asks its model by the environment it was given at the start, for ever: one line a second, status and attempt of it.
const SCRIPT: &str = r#"
while sleep 0.3; do
    curl -s -o /dev/null --max-time 5 -w '%{http_code}\n' -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"
done"#;

fn start<'a>(site: &'a Site, more: &[&str]) -> Result<(Job<'a>, Value)> {
    let arguments = [&["--serve-model=hardy"], more].concat();
    let job = site.sbatch("alice", &arguments, SCRIPT)?;
    let model = job.wait_model("ready")?;
    until("the model at the gateway", || at_gateway(site))?;
    Ok((job, model))
}

fn at_gateway(site: &Site) -> Result<bool> {
    Ok(site.models()?.contains(&"hardy".into()))
}

/// Waits until this attempt is ready, and holds it to what must stay as it was.
fn comes_back(site: &Site, job: &Job, first: &Value, attempt: u32) -> Result<()> {
    let mut model = Value::Null;
    until("the next attempt to be ready", || {
        model = job.model()?;
        Ok(model["state"] == "ready" && model["attempt"] == attempt)
    })
    .with_context(|| format!("{model}; {}", job.explain()))?;
    ensure!(model["base_url"] == first["base_url"], "{model}");
    let (now, before) = (model["generation"].as_str(), first["generation"].as_str());
    ensure!(
        now != before && now.is_some_and(|name| name.contains(&format!(".{attempt}-"))),
        "{model}"
    );
    let answered = job.output().matches("200\n").count();
    until("the script to be answered again", || {
        Ok(job.output().matches("200\n").count() > answered)
    })?;
    until("the model at the gateway again", || at_gateway(site))?;
    ensure!(site.ask("hardy", "")?.0 == 200);
    let shown = ["sserve", "status", &job.id.to_string()];
    let shown = site.lab.login().command("alice", shown).run()?;
    ensure!(shown.contains(&format!("{attempt} of 3")), "{shown}");
    Ok(())
}

fn kill_runner(site: &Site, job: &Job, step: u32) -> Result<()> {
    let step = format!("{}.{step}", job.id);
    let argv = ["scancel", "--signal=KILL", &step];
    site.lab.login().command("alice", argv).run().map(drop)
}

fn engine(site: &Site) -> Result<()> {
    let (job, first) = start(site, &[])?;
    job.stub()?.exit(0)?;
    until("the lost model to leave the gateway", || Ok(!at_gateway(site)?))?;
    comes_back(site, &job, &first, 2)?;
    let model = job.model()?;
    ensure!(model["last_failure"]["cause"] == "engine_died", "{model}");
    ensure!(job.output().contains("503\n"), "meanwhile: {}", job.output());
    let listing: serde_json::Value = serde_json::from_str(&site.gateway("/slurm-serve/v1/models")?.1)?;
    let rows = listing["models"].as_array().into_iter().flatten();
    let rows: Vec<_> = rows.filter(|row| row["job_id"] == job.id).collect();
    ensure!(
        matches!(rows.as_slice(), [row] if row["state"] == "ready"),
        "one row for both attempts: {rows:?}"
    );
    Ok(())
}

fn runner(site: &Site) -> Result<()> {
    let (job, first) = start(site, &[])?;
    kill_runner(site, &job, 0)?;
    until("the lost model to leave the gateway", || Ok(!at_gateway(site)?))?;
    comes_back(site, &job, &first, 2)?;
    ensure!(
        job.model()?["last_failure"]["cause"] == "runner_lost",
        "{}",
        job.model()?
    );
    // What began with the second attempt counts on.
    job.stub()?.exit(1)?;
    comes_back(site, &job, &first, 3)
}

fn agent(site: &Site) -> Result<()> {
    let (job, first) = start(site, &[])?;
    let node = site
        .lab
        .compute()
        .iter()
        .find(|node| first["node"] == node.name());
    let node = node.context("the model's node")?;
    kill_runner(site, &job, 0)?;
    until("it to be lost", || Ok(job.model()?["state"] == "restarting"))?;
    site.end_agent(node, Signal::SIGKILL)?;
    site.start_agent(node)?;
    comes_back(site, &job, &first, 2)?;
    ensure!(
        job.model()?["last_failure"]["cause"] == "runner_lost",
        "{}",
        job.model()?
    );
    Ok(())
}

fn for_good(site: &Site) -> Result<()> {
    let (job, first) = start(site, &["--serve-on-failure=cancel"])?;
    for attempt in [2, 3] {
        job.stub()?.exit(1)?;
        comes_back(site, &job, &first, attempt)?;
    }
    ensure!(job.state()? == "RUNNING");
    job.stub()?.exit(1)?;
    let state = job.wait_end()?;
    ensure!(state == "CANCELLED", "{state}: {}", job.explain());
    let model = job.model()?;
    ensure!(
        model["state"] == "failed" && model["ending"]["cause"] == "engine_died",
        "{model}"
    );
    Ok(())
}
