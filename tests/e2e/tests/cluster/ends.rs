//! How a model leaves: no request that it has taken is lost, and none that nobody waits for is worked on.

use anyhow::{Context, Result};
use serve_e2e::Site;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[("a_client_that_goes_away_ends_its_request", disconnect)];

fn disconnect(site: &Site) -> Result<()> {
    let job = site.sbatch(
        "alice",
        &["--serve-model=slow"],
        "env > env-$SLURM_JOB_ID; sleep 300",
    )?;
    job.wait_model("ready")?;
    until("the model at the gateway", || {
        Ok(site.models()?.contains(&"slow".into()))
    })?;
    let stub = job.stub()?;
    // Through gateway and guard.
    let stream = site.open_stream(None, "none", "slow", 10_000)?;
    stub.wait_running(1)?;
    stream.hang_up()?;
    stub.wait_running(0)?;
    // Through the guard alone.
    let login = site.lab.login();
    let path = format!("/home/alice/env-{}", job.id);
    let mut environment = String::new();
    until("the script's environment", || {
        environment = login.read_text(&path).unwrap_or_default();
        Ok(environment.contains("OPENAI_API_KEY="))
    })?;
    let value = |name: &str| {
        let found = environment.lines().find_map(|line| line.strip_prefix(name));
        found.with_context(|| format!("no {name} in {environment}"))
    };
    let (url, key) = (value("OPENAI_BASE_URL=")?, value("OPENAI_API_KEY=")?);
    let stream = site.open_stream(Some(url), key, "slow", 10_000)?;
    stub.wait_running(1)?;
    stream.hang_up()?;
    stub.wait_running(0)
}
