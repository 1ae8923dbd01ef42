//! An agent that is away, hangs, or comes back: jobs without a model notice nothing, jobs with one wait for it and say so, models run on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::{Job, Site, has};
use serve_lab::wait_for;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    (
        "without_an_agent_an_untagged_job_runs_as_ever",
        untagged_without_agent,
    ),
    (
        "without_an_agent_a_tagged_job_waits_then_fails",
        tagged_without_agent,
    ),
    ("an_agent_that_comes_in_time_is_waited_for", agent_comes),
    (
        "a_job_can_be_cancelled_while_it_waits_for_the_agent",
        cancelled_waiting,
    ),
    ("a_hung_agent_holds_up_no_untagged_job", untagged_hung),
    ("a_hung_agent_fails_a_tagged_job_in_the_end", tagged_hung),
    ("a_killed_agent_loses_no_model_and_breaks_no_stream", killed),
    ("a_stopped_agent_loses_no_model_and_breaks_no_stream", terminated),
    (
        "an_agent_killed_while_a_model_loads_finds_it_again",
        killed_while_loading,
    ),
    (
        "a_job_that_ends_while_the_agent_is_away_is_noticed",
        ends_without_agent,
    ),
];

fn untagged_without_agent(site: &Site) -> Result<()> {
    let node = site.node(1);
    site.end_agent(node, Signal::SIGKILL)?;
    untagged(site)
}

fn untagged_hung(site: &Site) -> Result<()> {
    site.signal_agent(site.node(1), Signal::SIGSTOP)?;
    untagged(site)
}

fn untagged(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name()], "srun -n1 true && echo it ran")?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    ensure!(job.output() == "it ran\n", "{:?}", job.output());
    let state = site.node_state(node)?;
    ensure!(state == "idle" || state == "completing", "the node is {state}");
    Ok(())
}

/// A tagged job on the first node whose agent does not answer: it fails with the line that says so.
fn given_up(site: &Site) -> Result<()> {
    let node = site.node(1);
    site.set_agent_wait(node, 2)?;
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=stub"], "echo it ran")?;
    let state = job.wait_end()?;
    let output = job.output();
    ensure!(
        state == "FAILED" && !output.contains("it ran"),
        "{state}: {}",
        job.explain()
    );
    // The wait for one that hangs is over with its first call.
    let lines: Vec<&str> = output.lines().collect();
    ensure!((1..=2).contains(&lines.len()), "a line or two: {output}");
    has(
        lines[lines.len() - 1],
        &[
            "serve: stub:",
            node.name(),
            "has not answered for 2 s",
            "submit it again",
        ],
    )
}

fn tagged_without_agent(site: &Site) -> Result<()> {
    site.end_agent(site.node(1), Signal::SIGTERM)?;
    given_up(site)
}

fn tagged_hung(site: &Site) -> Result<()> {
    site.signal_agent(site.node(1), Signal::SIGSTOP)?;
    given_up(site)
}

fn waiting_job<'a>(site: &'a Site, script: &str) -> Result<Job<'a>> {
    let node = site.node(1);
    site.end_agent(node, Signal::SIGKILL)?;
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=stub"], script)?;
    job.wait_output("waiting up to 60 s")?;
    Ok(job)
}

fn agent_comes(site: &Site) -> Result<()> {
    let job = waiting_job(site, "echo model $SERVE_MODEL")?;
    site.start_agent(site.node(1))?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    has(&job.output(), &["\nmodel stub\n"])
}

fn cancelled_waiting(site: &Site) -> Result<()> {
    let job = waiting_job(site, "echo it ran")?;
    job.cancel()?;
    let state = job.wait_end()?;
    ensure!(state == "CANCELLED", "{state}");
    ensure!(!job.output().contains("it ran"), "{}", job.output());
    Ok(())
}

fn killed(site: &Site) -> Result<()> {
    restarted(site, Signal::SIGKILL)
}

fn terminated(site: &Site) -> Result<()> {
    restarted(site, Signal::SIGTERM)
}

/// The agent is away and comes back while an answer streams through the gateway.
fn restarted(site: &Site, how: Signal) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=slow"], "sleep 300")?;
    let before = job.wait_model("ready")?;
    let listed = || Ok(site.models()?.contains(&"slow".to_owned()));
    until("the model at the gateway", listed)?;
    let engine = job.stub()?.process;

    let stream = site.open_stream(None, "none", "slow", 30)?;
    site.end_agent(node, how)?;
    ensure!(listed()?, "the gateway believes what it heard for the lease");
    let (status, body) = site.ask("slow", "")?;
    ensure!(status == 200, "without an agent: {status} {body}");
    site.start_agent(node)?;
    let text = stream.finish()?;
    ensure!(text.matches("\"content\":").count() >= 30, "{text}");

    let after = job.wait_model("ready")?;
    for field in ["generation", "base_url", "node"] {
        ensure!(
            before[field] == after[field],
            "{field}: {} {}",
            before[field],
            after[field]
        );
    }
    ensure!(job.stub()?.process == engine, "the same engine process");
    ensure!(listed()?, "still in the catalog");
    // The new agent rules over it like the old one.
    job.cancel()?;
    job.wait_end()?;
    until("the model to leave the gateway", || Ok(!listed()?))
}

fn killed_while_loading(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch(
        "alice",
        &["-w", node.name(), "--serve-model=late"],
        "echo model $SERVE_MODEL",
    )?;
    let engine = job.stub()?.process;
    site.end_agent(node, Signal::SIGKILL)?;
    site.start_agent(node)?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    has(&job.output(), &["\nmodel late\n"])?;
    ensure!(!engine.is_alive(), "it ended with its job");
    Ok(())
}

fn ends_without_agent(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name(), "--serve-model=stub"], "sleep 300")?;
    job.wait_model("ready")?;
    let listed = || Ok(site.models()?.contains(&"stub".to_owned()));
    until("the model at the gateway", listed)?;
    site.end_agent(node, Signal::SIGKILL)?;
    job.cancel()?;
    let state = job.wait_end()?;
    ensure!(state == "CANCELLED", "{state}");
    // The lease is over at some point, agent or not.
    until("the model to leave the gateway", || Ok(!listed()?))?;
    site.start_agent(node)?;
    wait_for(
        Duration::from_secs(20),
        "the new agent to have given it up",
        || {
            let model = job.model().ok();
            let over = model.is_none_or(|model| model["state"] == "ended" || model["state"] == "failed");
            Ok(over.then_some(()))
        },
    )
    .with_context(|| job.explain())?;
    ensure!(!listed()?, "and it is not announced again");
    Ok(())
}
