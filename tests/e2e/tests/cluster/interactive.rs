//! srun and salloc: a job of its own, a step of one, and jobs made inside one.

use anyhow::{Result, ensure};
use serve_e2e::{Site, has};

use crate::Test;

/// All of them.
pub const TESTS: &[Test] = &[
    ("srun_alone_makes_a_job_with_a_model", srun_alone),
    ("steps_of_a_tagged_salloc_share_its_model", salloc),
    (
        "a_job_submitted_in_a_tagged_salloc_has_a_server_of_its_own",
        nested,
    ),
    (
        "a_step_cannot_bring_a_model_into_an_untagged_allocation",
        step_in_untagged,
    ),
    ("a_step_cannot_have_another_model_than_its_job", other_model),
    ("an_inherited_key_of_ones_own_is_kept_and_said", own_key),
    ("an_allocation_without_a_step_gets_its_model", no_step),
];

const ASK: &str = r#"curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"; echo; echo at $SERVE_MODEL_URL"#;

fn addresses(out: &str) -> Vec<&str> {
    out.lines().filter_map(|line| line.strip_prefix("at ")).collect()
}

fn srun_alone(site: &Site) -> Result<()> {
    let argv = ["srun", "--mem=500", "-n1", "--serve-model=stub", "sh", "-c", ASK];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    has(&said.out, &["\"id\":\"stub\"", "at http://"])?;
    ensure!(said.err.matches("ready after").count() == 1, "{}", said.err);
    // Its exit code is the program's own.
    let argv = [
        "srun",
        "--mem=500",
        "-n1",
        "--serve-model=stub",
        "sh",
        "-c",
        "exit 7",
    ];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 7, "{said:?}");
    Ok(())
}

fn salloc(site: &Site) -> Result<()> {
    let script = format!("srun -n1 sh -c '{ASK}'; srun -n1 --serve-model=stub sh -c '{ASK}'");
    let argv = ["salloc", "--mem=500", "--serve-model=stub", "sh", "-c", &script];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let at = addresses(&said.out);
    ensure!(
        at.len() == 2 && at[0] == at[1],
        "one server for both steps: {said:?}"
    );
    has(&said.out, &["\"id\":\"stub\""])
}

fn nested(site: &Site) -> Result<()> {
    let script = r#"srun -n1 sh -c 'echo at $SERVE_MODEL_URL'
sbatch --parsable --wait --mem=500 -o nested-%j.out --wrap 'echo at $SERVE_MODEL_URL' > nested-id && cat nested-$(cat nested-id).out"#;
    let argv = ["salloc", "--mem=500", "--serve-model=stub", "sh", "-c", script];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let at = addresses(&said.out);
    ensure!(at.len() == 2 && at[0] != at[1], "a server each: {said:?}");
    let told = said
        .ours()
        .into_iter()
        .filter(|line| line.contains("a server of its own"));
    let told: Vec<&str> = told.collect();
    ensure!(told.len() == 1, "{}", said.err);
    has(
        told[0],
        &["unset SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model"],
    )?;
    // And without that variable it has none.
    let script = "unset SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model
sbatch --parsable --wait --mem=500 -o nested-%j.out --wrap 'echo at $SERVE_MODEL_URL.' > nested-id && cat nested-$(cat nested-id).out";
    let argv = ["salloc", "--mem=500", "--serve-model=stub", "sh", "-c", script];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0 && said.out == "at .\n", "{said:?}");
    Ok(())
}

fn step_in_untagged(site: &Site) -> Result<()> {
    let argv = [
        "salloc",
        "--mem=500",
        "srun",
        "-n1",
        "--serve-model=stub",
        "echo",
        "it ran",
    ];
    let said = site.say("alice", &argv, "", &[])?;
    said.one_line(&["was submitted without --serve-model", "sbatch or salloc"])?;
    ensure!(!said.out.contains("it ran"), "{said:?}");
    // The same where srun's check is not to be had: the node says no.
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name()], "sleep 300")?;
    job.wait_state(&["RUNNING"])?;
    let open = ["open", &job.id.to_string(), r#"{"model": "stub"}"#];
    has(
        &crate::stranger(node, "alice", &open)?,
        &["FAILED_PRECONDITION", "without --serve-model"],
    )
}

fn other_model(site: &Site) -> Result<()> {
    let argv = [
        "salloc",
        "--mem=500",
        "--serve-model=stub",
        "srun",
        "-n1",
        "--serve-model=late",
        "true",
    ];
    let said = site.say("alice", &argv, "", &[])?;
    said.one_line(&["serves stub", "another model"])?;
    let argv = [
        "salloc",
        "--mem=500",
        "--serve-model=stub",
        "srun",
        "-n1",
        "--serve-args=--seed 1",
        "true",
    ];
    let said = site.say("alice", &argv, "", &[])?;
    said.one_line(&["--serve-args", "cannot change it"])
}

/// The shell of a salloc on the login node: sserve says where the model is, and the first step finds the same.
fn no_step(site: &Site) -> Result<()> {
    let argv = ["salloc", "--mem=500", "--no-shell", "--serve-model=stub"];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let granted = said
        .err
        .lines()
        .find_map(|line| line.split("job allocation ").nth(1));
    let job = site.job("alice", granted.unwrap_or_default())?;
    let id = job.id.to_string();
    let waited = site.say("alice", &["sserve", "wait", &id], "", &[])?;
    ensure!(waited.code == 0, "{waited:?}\n{}", job.explain());
    let before = job.wait_model("ready")?;
    let url = site.say("alice", &["sserve", "url", &id], "", &[])?;
    let step = [
        "srun",
        "--jobid",
        &id,
        "-n1",
        "--serve-model=stub",
        "sh",
        "-c",
        ASK,
    ];
    let stepped = site.say("alice", &step, "", &[])?;
    ensure!(stepped.code == 0, "{stepped:?}");
    has(&stepped.out, &["\"id\":\"stub\""])?;
    let at = addresses(&stepped.out);
    ensure!(at.len() == 1 && url.out.contains(at[0]), "{url:?} {stepped:?}");
    ensure!(job.model()?["generation"] == before["generation"], "one server");
    job.cancel()?;
    job.wait_end().map(drop)
}

fn own_key(site: &Site) -> Result<()> {
    let script = "#!/bin/sh\necho key $SERVE_ORIG_OPENAI_API_KEY\n[ \"$OPENAI_API_KEY\" = \"$SERVE_MODEL_KEY\" ] && echo replaced\n";
    let submit = |more: &[&str], script: &str| -> Result<String> {
        let mut argv = vec!["sbatch", "--parsable", "--mem=500", "--serve-model=stub"];
        argv.extend(more);
        let said = site.say("alice", &argv, script, &[("OPENAI_API_KEY", "sk-my-own")])?;
        ensure!(said.code == 0, "{said:?}");
        let job = site.job("alice", &said.out)?;
        ensure!(job.wait_end()? == "COMPLETED", "{}", job.explain());
        Ok(job.output())
    };
    let output = submit(&[], script)?;
    has(&output, &["key sk-my-own\n", "replaced\n"])?;
    let told: Vec<&str> = output
        .lines()
        .filter(|line| line.contains("SERVE_ORIG_"))
        .collect();
    ensure!(told.len() == 1, "one line says so: {output}");
    let output = submit(
        &["--serve-env=serve-only"],
        "#!/bin/sh\necho key $OPENAI_API_KEY\n",
    )?;
    has(&output, &["key sk-my-own\n"])
}
