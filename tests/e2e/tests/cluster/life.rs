//! How jobs with a model live and end.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serve_e2e::Site;
use serve_lab::wait_for;

use crate::Test;

/// All of them.
pub const TESTS: &[Test] = &[
    ("the_script_starts_when_the_model_is_ready", script_starts_ready),
    ("without_waiting_the_script_starts_at_once", no_wait),
    (
        "a_job_cancelled_while_loading_leaves_nothing",
        cancelled_while_loading,
    ),
    ("two_jobs_on_one_node_have_a_server_each", two_jobs),
    (
        "steps_and_nested_jobs_share_or_need_no_server",
        one_server_per_job,
    ),
    ("an_untagged_job_sees_nothing_of_us", untagged),
    ("hold_keeps_a_serving_job_alive_and_stop_ends_it", hold_and_stop),
    ("ends_that_were_asked_for_are_told_apart", causes_are_told_apart),
    ("all_nodes_of_a_job_reach_its_model", two_nodes),
];

fn script_starts_ready(site: &Site) -> Result<()> {
    let script = r#"curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"; echo; echo model $SERVE_MODEL"#;
    let job = site.sbatch("alice", &["--serve-model=stub"], script)?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    let output = job.output();
    ensure!(
        output.contains(r#""id":"stub""#) && output.contains("model stub"),
        "{output}"
    );
    ensure!(job.field("ExitCode")? == "0:0");
    Ok(())
}

fn no_wait(site: &Site) -> Result<()> {
    let script = r#"curl -sS -o /dev/null -w 'first answer %{http_code}\n' -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"; sserve wait && echo it has come"#;
    let job = site.sbatch("alice", &["--serve-model=late", "--serve-wait=no"], script)?;
    let output = job.wait_output("it has come\n")?;
    ensure!(
        output.contains("first answer 503"),
        "a model that loads says so: {output}"
    );
    Ok(())
}

fn cancelled_while_loading(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=loading"], "echo never")?;
    job.wait_model("loading")?;
    job.cancel()?;
    let state = job.wait_end()?;
    ensure!(state == "CANCELLED", "{state}");
    ensure!(!job.output().contains("never"), "{}", job.output());
    Ok(())
}

fn two_jobs(site: &Site) -> Result<()> {
    let node = site.node(1).name().to_owned();
    let jobs = [(); 2].map(|()| site.sbatch("alice", &["--serve-model=stub", "-w", &node], "sleep 300"));
    let [first, second] = jobs;
    let (first, second) = (first?, second?);
    let (a, b) = (first.wait_model("ready")?, second.wait_model("ready")?);
    ensure!(a["base_url"] != b["base_url"], "both at {}", a["base_url"]);
    // Two replicas of one name: the gateway lists it once and uses both.
    ensure!(site.models()?.iter().filter(|name| *name == "stub").count() == 1);
    first.cancel()?;
    first.wait_end()?;
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 200, "the other one still answers: {status} {body}");
    Ok(())
}

fn one_server_per_job(site: &Site) -> Result<()> {
    let script = r#"
srun -n2 sh -c 'echo step $SLURM_PROCID uses $SERVE_MODEL_URL'
sbatch --mem=100 -o /dev/null --parsable --wrap 'sleep 1' > nested-$SLURM_JOB_ID
sleep 300"#;
    let job = site.sbatch("alice", &["--serve-model=stub", "-n2"], script)?;
    job.wait_output("step 1 uses http")?;
    let output = job.wait_output("step 0 uses http")?;
    ensure!(output.matches("ready after").count() == 1, "one server: {output}");
    let login = site.lab.login();
    let nested = wait_for(Duration::from_secs(20), "the nested job's number", || {
        let text = login
            .read_text(format!("/home/alice/nested-{}", job.id))
            .unwrap_or_default();
        Ok(text.trim().parse::<u32>().ok())
    })
    .with_context(|| job.explain())?;
    let shown = login
        .command("alice", ["sserve", "status", "--json", &nested.to_string()])
        .output()?;
    ensure!(
        !shown.status.success(),
        "the nested job asked for no model, but has one"
    );
    let steps = login
        .command(
            "alice",
            ["squeue", "-h", "-s", "-j", &job.id.to_string(), "-o", "%j"],
        )
        .run()?;
    ensure!(
        steps.lines().filter(|name| name.trim() == "serve").count() == 1,
        "{steps}"
    );
    Ok(())
}

fn untagged(site: &Site) -> Result<()> {
    let job = site.sbatch("bob", &[], "env | grep -cE 'SERVE|OPENAI'; echo done")?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}");
    ensure!(job.output() == "0\ndone\n", "{:?}", job.output());
    Ok(())
}

fn hold_and_stop(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=stub"], "sserve hold; echo held: $?")?;
    job.wait_model("ready")?;
    let (status, _) = site.ask("stub-alias", "")?;
    ensure!(status == 200, "an alias answers too");
    site.lab
        .login()
        .command("alice", ["sserve", "stop", &job.id.to_string()])
        .run()?;
    let output = job.wait_output("held: ")?;
    ensure!(
        output.contains("held: 0"),
        "an end that was asked for is no failure: {output}"
    );
    if site.models()?.contains(&"stub".to_owned()) {
        bail!("it is still listed");
    }
    Ok(())
}

fn causes_are_told_apart(site: &Site) -> Result<()> {
    let node = site.node(1);
    let submit = |script: &str| {
        site.sbatch(
            "alice",
            &["--serve-model=stub", "--requeue", "-w", node.name()],
            script,
        )
    };
    let (cancelled, finished, requeued) = (submit("sleep 300")?, submit("true")?, submit("sleep 300")?);
    cancelled.wait_model("ready")?;
    cancelled.cancel()?;
    cancelled.wait_cause(node, "cancelled")?;
    finished.wait_cause(node, "job_ended")?;
    requeued.wait_model("ready")?;
    site.lab
        .controller()
        .command("root", ["scontrol", "requeue", &requeued.id.to_string()])
        .run()?;
    requeued.wait_cause(node, "requeued")?;
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
