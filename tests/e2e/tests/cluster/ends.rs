//! How a model leaves: no request that it has taken is lost, and none that nobody waits for is worked on.

use anyhow::{Context, Result, ensure};
use serve_e2e::Site;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    ("a_client_that_goes_away_ends_its_request", disconnect),
    ("no_request_is_lost_when_a_job_is_cancelled", cancelled_under_load),
    ("no_request_is_lost_when_one_of_two_replicas_ends", one_of_two),
    ("a_stream_that_is_open_at_scancel_gets_its_end", open_stream),
    ("the_time_limit_ends_a_model_like_scancel", time_limit),
];

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

fn cancelled_under_load(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=busy"], "sleep 300")?;
    job.wait_model("ready")?;
    until("the model at the gateway", || {
        Ok(site.models()?.contains(&"busy".into()))
    })?;
    let ((), answers) = site.flood("busy", 4, |flood| {
        until("some answers", || Ok(flood.answered() > 20))?;
        job.cancel()?;
        until("the model to leave the gateway", || {
            Ok(!site.models()?.contains(&"busy".into()))
        })?;
        job.wait_end().map(drop)
    })?;
    // From some moment on there is no such model, or it is ending; until then, and for what was taken before, there are answers.
    let allowed = ["200", "404 model_not_found", "503 model_ending"];
    let lost: Vec<_> = answers
        .iter()
        .filter(|(answer, _)| !allowed.contains(&answer.as_str()))
        .collect();
    ensure!(lost.is_empty(), "{lost:?} among {answers:?}; {}", job.explain());
    Ok(())
}

fn one_of_two(site: &Site) -> Result<()> {
    let [first, second] = [1, 2].map(|node| {
        let node = site.node(node).name();
        site.sbatch("alice", &["--serve-model=busy", "-w", node], "sleep 300")
    });
    let (first, second) = (first?, second?);
    first.wait_model("ready")?;
    second.wait_model("ready")?;
    let replicas = || -> Result<bool> {
        let (_, listing) = site.gateway("/slurm-serve/v1/models")?;
        Ok(listing.matches("\"state\":\"ready\"").count() == 2)
    };
    until("both at the gateway", replicas)?;
    let ((), answers) = site.flood("busy", 4, |flood| {
        until("some answers", || Ok(flood.answered() > 20))?;
        first.cancel()?;
        first.wait_end()?;
        let so_far = flood.answered();
        until("some more answers", || Ok(flood.answered() > so_far + 20))
    })?;
    ensure!(
        answers.keys().all(|answer| answer == "200"),
        "{answers:?}; {}",
        first.explain()
    );
    Ok(())
}

fn open_stream(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=slow"], "sleep 300")?;
    job.wait_model("ready")?;
    until("the model at the gateway", || {
        Ok(site.models()?.contains(&"slow".into()))
    })?;
    let stream = site.open_stream(None, "none", "slow", 20)?;
    job.cancel()?;
    let text = stream.finish().with_context(|| job.explain())?;
    ensure!(text.matches("\"content\":").count() >= 20, "{text}");
    let state = job.wait_end()?;
    ensure!(state == "CANCELLED", "{state}");
    Ok(())
}

fn time_limit(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=stub", "--time=10"], "sleep 300")?;
    job.wait_model("ready")?;
    until("the model at the gateway", || {
        Ok(site.models()?.contains(&"stub".into()))
    })?;
    // Slurm's limits are minutes; the books can say seconds.
    let id = format!("JobId={}", job.id);
    site.lab
        .controller()
        .command("root", ["scontrol", "update", &id, "EndTime=now+1"])
        .run()?;
    let state = job.wait_end()?;
    ensure!(state == "TIMEOUT", "{state}");
    until("the model to leave the gateway", || {
        Ok(!site.models()?.contains(&"stub".into()))
    })?;
    until("the cause to be known", || {
        Ok(job.model()?["ending"]["cause"] == "time_limit")
    })
    .with_context(|| format!("{:?}", job.model()))
}
