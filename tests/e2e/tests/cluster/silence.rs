//! Models that are there and do not answer: out of the gateway while it lasts, and back by themselves.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::Site;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    (
        "a_suspended_job_leaves_the_gateway_and_comes_back_also_to_another_agent",
        suspended,
    ),
    ("an_engine_that_hangs_leaves_the_gateway_and_comes_back", hangs),
];

fn hangs(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=hardy"], "sleep 300")?;
    let generation = job.wait_model("ready")?["generation"].clone();
    let at_gateway = || Ok(site.models()?.contains(&"hardy".to_owned()));
    until("the model at the gateway", at_gateway)?;
    let stub = job.stub()?;
    for hang in ["all", "engine"] {
        stub.set(&format!("{{\"hang\": \"{hang}\"}}"))?;
        until("the hanging model to leave the gateway", || Ok(!at_gateway()?))?;
        let model = job.model()?;
        ensure!(model["state"] == "unresponsive", "{model}");
        let (status, body) = site.ask("hardy", "")?;
        ensure!(
            status == 503 && body.contains("model_not_answering"),
            "{status} {body}"
        );
        stub.set("{\"hang\": \"none\"}")?;
        let model = job.wait_model("ready")?;
        ensure!(model["generation"] == generation, "it is the same one: {model}");
        until("the model at the gateway again", at_gateway)?;
    }
    Ok(())
}

fn suspended(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=stub"], "sleep 300")?;
    let generation = job.wait_model("ready")?["generation"].clone();
    let at_gateway = || Ok(site.models()?.contains(&"stub".to_owned()));
    until("the model at the gateway", at_gateway)?;
    let scontrol = |what: &str| {
        let argv = ["scontrol", what, &job.id.to_string()];
        site.lab.controller().command("root", argv).run()
    };
    for agent_dies in [false, true] {
        scontrol("suspend")?;
        until("the frozen model to leave the gateway", || Ok(!at_gateway()?))?;
        ensure!(job.model()?["state"] == "unresponsive", "{}", job.model()?);
        let (status, body) = site.ask("stub", "")?;
        ensure!(
            status == 503 && body.contains("model_not_answering"),
            "{status} {body}"
        );
        if agent_dies {
            let node = site.node(if job.field("NodeList")? == site.node(1).name() {
                1
            } else {
                2
            });
            site.end_agent(node, Signal::SIGKILL)?;
            site.start_agent(node)?;
            // Longer than it waits for runners that could come back.
            until("the new agent to say that it is still there", || {
                Ok(job.model().is_ok_and(|model| model["state"] == "unresponsive"))
            })
            .with_context(|| job.explain())?;
        }
        scontrol("resume")?;
        let model = job.wait_model("ready")?;
        ensure!(model["generation"] == generation, "it is the same one: {model}");
        until("the model at the gateway again", at_gateway)?;
        ensure!(site.ask("stub", "")?.0 == 200);
    }
    Ok(())
}
