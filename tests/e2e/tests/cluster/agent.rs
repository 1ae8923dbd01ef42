//! An agent that is away, hangs, or comes back: jobs without a model notice nothing, jobs with one wait for it and say so, models run on.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::{Job, Site, has};

use crate::Test;

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
    (
        "an_agent_killed_while_a_model_loads_finds_it_again",
        killed_while_loading,
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
