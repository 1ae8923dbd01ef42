//! The end of a job that is known beforehand.

use anyhow::{Result, ensure};
use serve_e2e::Site;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[(
    "near_its_jobs_end_a_model_is_its_jobs_alone_and_a_raised_limit_brings_it_back",
    retires,
)];

fn retires(site: &Site) -> Result<()> {
    let script = r#"
while sleep 0.3; do
    curl -s -o /dev/null --max-time 10 -w '%{http_code}\n' -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models" >> own-$SLURM_JOB_ID
done"#;
    let job = site.sbatch("alice", &["--serve-model=stub", "--time=10"], script)?;
    job.wait_model("ready")?;
    let at_gateway = || Ok(site.models()?.contains(&"stub".to_owned()));
    until("the model at the gateway", at_gateway)?;
    let end = |when: &str| {
        let id = format!("JobId={}", job.id);
        let update = ["scontrol", "update", &id, &format!("EndTime=now+{when}")];
        site.lab.controller().command("root", update).run()
    };
    // A tenth of what it has is left to it alone: some 2 s.
    end("15seconds")?;
    job.wait_model("retiring")?;
    until("the model to leave the gateway", || Ok(!at_gateway()?))?;
    let refused = site.ask("stub", "")?;
    ensure!(
        refused.0 == 503 && refused.1.contains("model_ending"),
        "{refused:?}"
    );
    end("600seconds")?;
    job.wait_model("ready")?;
    until("the model at the gateway again", at_gateway)?;
    job.cancel()?;
    job.wait_end()?;
    let login = site.lab.login();
    let own = login.read_text(format!("/home/alice/own-{}", job.id))?;
    let (answered, last) = (
        own.lines().filter(|code| *code == "200").count(),
        own.lines().count(),
    );
    // The last one may have met the end of the job.
    ensure!(
        answered + 1 >= last && answered > 10,
        "the job's own requests: {own}"
    );
    Ok(())
}
