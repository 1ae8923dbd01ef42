//! Engines that don't come up: the job hears why, in its own output, and what to do.

use anyhow::{Context, Result, ensure};
use serve_e2e::{Site, has};

use crate::{Test, until};

/// Where the admin's recipes lie.
const RECIPES: &str = "/etc/slurm-serve/models.d";

/// All of them.
pub const TESTS: &[Test] = &[
    ("too_few_gpus_are_said_before_loading", too_few_gpus),
    ("a_job_with_enough_gpus_gets_its_model", enough_gpus),
    ("a_missing_engine_is_named", no_engine),
    ("missing_weights_are_named", no_weights),
    (
        "a_recipe_that_is_broken_on_the_node_alone_is_shown",
        broken_on_node,
    ),
    (
        "a_log_that_cannot_be_where_it_belongs_is_elsewhere_and_said",
        log_elsewhere,
    ),
    ("an_engine_that_dies_while_loading_fails_the_job", dies_loading),
    ("a_model_that_is_not_ready_in_time_fails_the_job", not_in_time),
];

/// A job that fails for its model's sake: the one line that says why has `why`, the next one says what to do with `hint`.
fn fails(site: &Site, arguments: &[&str], why: &[&str], hint: &[&str]) -> Result<()> {
    let job = site.sbatch("alice", arguments, "echo it ran")?;
    let state = job.wait_end()?;
    let output = job.output();
    ensure!(
        state == "FAILED" && !output.contains("it ran"),
        "{state}: {}",
        job.explain()
    );
    let failed: Vec<&str> = output
        .lines()
        .filter(|line| line.contains(": failed: "))
        .collect();
    ensure!(failed.len() == 1, "not one line says why: {output}");
    has(failed[0], why).with_context(|| job.explain())?;
    let advice = output.lines().find(|line| line.contains("what to do: "));
    has(advice.with_context(|| output.clone())?, hint)?;
    // sserve tells the same afterwards, and the model can't be had any more.
    let model = job.model()?;
    ensure!(model["state"] == "failed", "{model}");
    has(
        failed[0],
        &[model["ending"]["text"].as_str().unwrap_or("no text")],
    )
}

fn too_few_gpus(site: &Site) -> Result<()> {
    fails(
        site,
        &["--serve-model=hungry"],
        &["hungry", "needs 16", "no GPU on this node"],
        &["--gres=gpu:16"],
    )?;
    fails(
        site,
        &["--serve-model=pair", "--gres=gpu:1"],
        &["pair", "needs 2", "1 GPU on this node"],
        &["--gres=gpu:2"],
    )
}

fn enough_gpus(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=pair", "--gres=gpu:2"], "echo it ran")?;
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    Ok(())
}

fn no_engine(site: &Site) -> Result<()> {
    fails(
        site,
        &["--serve-model=no-engine"],
        &["no-engine", "/opt/no/such/vllm", "not on this node"],
        &["engine.command"],
    )
}

fn no_weights(site: &Site) -> Result<()> {
    fails(
        site,
        &["--serve-model=missing"],
        &["missing", "/opt/no/such/weights", "No such file"],
        &["source"],
    )
}

fn broken_on_node(site: &Site) -> Result<()> {
    let node = site.node(1);
    let path = format!("{RECIPES}/late.toml");
    let whole = node.read_text(&path)?;
    node.install_file(&path, whole.replace("gpus", "gpsu"), 0o644)?;
    let job = site.sbatch("alice", &["--serve-model=late", "-w", node.name()], "echo it ran");
    let ended = job.and_then(|job| Ok((job.wait_end()?, job.output())));
    node.install_file(&path, whole, 0o644)?;
    let (state, output) = ended?;
    ensure!(
        state == "FAILED" && output.lines().count() == 1,
        "{state}: {output}"
    );
    has(
        &output,
        &[
            "no recipe for model \"late\"",
            &format!("{path}:"),
            "gpsu",
            "gpus",
        ],
    )
}

fn log_elsewhere(site: &Site) -> Result<()> {
    // Neither where stdout goes nor the working directory is hers to write to.
    let arguments = [
        "--serve-model=stub",
        "--chdir=/",
        "-o",
        "/dev/null",
        "-e",
        "/home/alice/slurm-%j.out",
    ];
    let job = site.sbatch("alice", &arguments, "sleep 300")?;
    let model = job.wait_model("ready")?;
    let path = model["log_path"].as_str().unwrap_or_default();
    ensure!(path.starts_with("/tmp/sserve-"), "{model}");
    let output = job.wait_output(path)?;
    has(
        &output,
        &[
            "serve: the server's log is /tmp/sserve-",
            "until the model ends",
            "refused it",
        ],
    )?;
    // The engine's lines take their own way to the agent; on a loaded machine "ready" may be there first.
    until("the engine's lines in sserve logs", || {
        let logs = site.say("alice", &["sserve", "logs", &job.id.to_string()], "", &[])?;
        ensure!(logs.code == 0, "{logs:?}");
        Ok(logs.out.contains("stub as:"))
    })
}

fn dies_loading(site: &Site) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=dies"], "echo it ran")?;
    let state = job.wait_end()?;
    let output = job.output();
    ensure!(
        state == "FAILED" && !output.contains("it ran"),
        "{state}: {output}"
    );
    let failed: Vec<&str> = output
        .lines()
        .filter(|line| line.contains(": failed: "))
        .collect();
    ensure!(failed.len() == 1, "not one line says why: {output}");
    let log = format!("/home/alice/serve-{}.log on ", job.id);
    ensure!(output.contains(&log), "where the log is: {output}");
    let text = site
        .lab
        .login()
        .read_text(format!("/home/alice/serve-{}.log", job.id))?;
    has(&text, &["worker process failed"])
}

fn not_in_time(site: &Site) -> Result<()> {
    fails(
        site,
        &["--serve-model=endless"],
        &["endless", "not ready within 1s"],
        &["ready_timeout"],
    )
}
