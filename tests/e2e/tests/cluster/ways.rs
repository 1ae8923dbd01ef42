//! Ways into a served job, beyond a plain sbatch: lines in the script, the environment, several tasks and nodes, arrays, heterogeneous jobs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serve_e2e::{Job, Site, has};

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    ("a_line_in_the_script_asks_for_a_model", in_the_script),
    ("the_environment_asks_for_a_model", by_environment),
    ("no_exported_environment_does_not_lose_the_model", export_none),
    ("the_end_of_one_task_ends_no_model", one_of_many_ends),
    ("tasks_on_every_node_of_an_srun_have_the_model", srun_on_two),
    (
        "a_step_on_the_second_node_alone_starts_the_model_on_the_first",
        second_node_first,
    ),
    (
        "a_step_on_another_node_waits_for_the_agent_of_the_first",
        first_agent_away,
    ),
    ("each_task_of_an_array_has_a_server", array),
    (
        "a_heterogeneous_job_is_served_by_its_first_component",
        heterogeneous,
    ),
    ("jobs_with_a_gpu_each_share_a_node", a_gpu_each),
    (
        "a_path_is_served_by_the_sites_template_and_refused_without_one",
        without_a_recipe,
    ),
];

/// `--serve-model=/path`, where the site allows it, and where it does not.
fn without_a_recipe(site: &Site) -> Result<()> {
    let file = "/etc/slurm-serve/models.d/zz-any.toml";
    let refused = |line: &str| {
        has(
            line,
            &["/home/alice/My Own", "has no recipe", "sserve recipes list"],
        )
    };
    let argv = [
        "sbatch",
        "--parsable",
        "--serve-model=/home/alice/My Own",
        "--mem=500",
    ];
    let said = site.say("alice", &argv, "#!/bin/sh\ntrue\n", &[])?;
    ensure!(said.code != 0, "{said:?}");
    refused(&said.err)?;

    let template = "source = \"*\"\ngpus = 0\nready_timeout = \"30s\"\n\n[engine]\n\
                    command = [\"/usr/lib/slurm-serve/stub-engine\", \"serve\"]\n";
    let nodes = || site.lab.nodes();
    site.lab
        .login()
        .command("alice", ["mkdir", "-p", "/home/alice/My Own"])
        .run()?;
    for node in nodes() {
        node.install_file(file, template, 0o644)?;
    }
    let tried = (|| {
        let job = submit(
            site,
            &["--serve-model=/home/alice/My Own"],
            &format!("#!/bin/sh\necho model $SERVE_MODEL\n{ASK}\n"),
            &[],
        )?;
        let output = completed(&job)?;
        has(&output, &["model alice/My-Own", "200 on "])?;
        // A template is no model, and a user's own recipe no template.
        let said = site.say(
            "alice",
            &["sbatch", "--serve-model=zz-any"],
            "#!/bin/sh\ntrue\n",
            &[],
        )?;
        ensure!(said.code != 0, "{said:?}");
        has(&said.err, &["there is no model \"zz-any\""])
    })();
    for node in nodes() {
        node.command("root", ["rm", file]).run()?;
    }
    tried
}

/// Prints the answer's status and where it was asked.
const ASK: &str = r#"curl -sS -o /dev/null -w "%{http_code} on $SLURMD_NODENAME at $SERVE_MODEL_URL\n" -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models""#;

/// The endpoints that tasks reached, one a line of their output.
fn reached(output: &str) -> Vec<&str> {
    output
        .lines()
        .filter(|line| line.starts_with("200 on "))
        .filter_map(|line| line.split(" at ").nth(1))
        .collect()
}

/// sbatch with a whole script of the test's own.
fn submit<'a>(site: &'a Site, argv: &[&str], script: &str, env: &[(&str, &str)]) -> Result<Job<'a>> {
    let mut all = vec!["sbatch", "--parsable", "--mem=500"];
    all.extend(argv);
    let said = site.say("alice", &all, script, env)?;
    ensure!(said.code == 0, "{said:?}");
    site.job("alice", &said.out)
}

fn completed(job: &Job) -> Result<String> {
    let state = job.wait_end()?;
    ensure!(state == "COMPLETED", "{state}: {}", job.explain());
    Ok(job.output())
}

fn in_the_script(site: &Site) -> Result<()> {
    let script = format!(
        "#!/bin/sh\n#SBATCH --serve-model=stub\n#SBATCH --serve-name=mine\n{ASK}\necho as $SERVE_MODEL\n"
    );
    let output = completed(&submit(site, &[], &script, &[])?)?;
    ensure!(reached(&output).len() == 1, "{output}");
    has(&output, &["as alice/mine\n"])
}

/// As a site's portal or slurmrestd submits: no option anywhere, only what Slurm's own variables say.
fn by_environment(site: &Site) -> Result<()> {
    let env = [("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model", "stub")];
    let script = format!("#!/bin/sh\n{ASK}\n");
    let output = completed(&submit(site, &[], &script, &env)?)?;
    ensure!(reached(&output).len() == 1, "{output}");
    // It is checked like an option.
    let env = [("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model", "stubb")];
    let said = site.say("alice", &["sbatch", "--mem=500"], &script, &env)?;
    said.one_line(&["stubb", "stub"])
}

fn export_none(site: &Site) -> Result<()> {
    for export in ["--export=NONE", "--export=HOME=/home/alice"] {
        let script = format!(
            "#!/bin/bash\n{ASK}\n[ -z \"$SECRET\" ] && echo clean\nsrun -n1 --export=ALL /bin/bash -c '{ASK}'\n"
        );
        let job = submit(site, &["--serve-model=stub", export], &script, &[("SECRET", "1")])?;
        let output = completed(&job)?;
        ensure!(reached(&output).len() == 2, "{export}: {output}");
        has(&output, &["clean\n"])?;
    }
    Ok(())
}

fn one_of_many_ends(site: &Site) -> Result<()> {
    // Rank 0 ends at once, the others use the model when it has.
    let script = format!(
        "if [ $SLURM_PROCID = 0 ]; then touch $HOME/first-$SLURM_JOB_ID; exit 0; fi
for try in $(seq 100); do [ -e $HOME/first-$SLURM_JOB_ID ] && break; sleep 0.1; done
sleep 1; {ASK}"
    );
    let argv = [
        "srun",
        "--mem=500",
        "-n8",
        "--overcommit",
        "--serve-model=stub",
        "sh",
        "-c",
        &script,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let at = reached(&said.out);
    ensure!(at.len() == 7 && at.iter().all(|one| *one == at[0]), "{said:?}");
    ensure!(
        said.err.matches("ready after").count() == 1,
        "one task speaks: {}",
        said.err
    );
    Ok(())
}

fn srun_on_two(site: &Site) -> Result<()> {
    let argv = [
        "srun",
        "--mem=500",
        "-N2",
        "-n2",
        "--serve-model=stub",
        "sh",
        "-c",
        ASK,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let at = reached(&said.out);
    ensure!(
        at.len() == 2 && at[0] == at[1],
        "one server, reached from both nodes: {said:?}"
    );
    for node in site.lab.compute() {
        ensure!(said.out.contains(&format!("200 on {}", node.name())), "{said:?}");
    }
    Ok(())
}

fn second_node_first(site: &Site) -> Result<()> {
    let (first, second) = (site.node(1).name(), site.node(2).name());
    let script = format!(
        "srun -N1 -n1 -w {second} sh -c '{ASK}'
srun -N1 -n1 -w {first} sh -c '{ASK}'
sserve list"
    );
    let argv = [
        "salloc",
        "--mem=500",
        "-N2",
        "--serve-model=stub",
        "sh",
        "-c",
        &script,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(said.code == 0, "{said:?}");
    let at = reached(&said.out);
    ensure!(at.len() == 2 && at[0] == at[1], "{said:?}");
    has(
        &said.out,
        &[&format!("200 on {second}"), &format!("200 on {first}")],
    )?;
    ensure!(
        said.out
            .lines()
            .any(|line| line.contains("stub") && line.contains(first)),
        "served on the first node: {said:?}"
    );
    ensure!(
        said.err.contains("ready after"),
        "the one who waited was told: {said:?}"
    );
    Ok(())
}

/// The agent on the first node is restarted while a task on the second waits for its model.
fn first_agent_away(site: &Site) -> Result<()> {
    let (first, second) = (site.node(1), site.node(2));
    site.end_agent(first, Signal::SIGTERM)?;
    let said = site.say(
        "alice",
        &["salloc", "--no-shell", "--mem=500", "-N2", "--serve-model=stub"],
        "",
        &[],
    )?;
    ensure!(said.code == 0, "{said:?}");
    let granted = said
        .err
        .lines()
        .find_map(|line| line.split("job allocation ").nth(1));
    let job = site.job("alice", granted.context("no allocation")?)?;
    let id = job.id.to_string();
    let login = site.lab.login();
    let output = format!("/home/alice/step-{id}.out");
    let step = format!(
        "srun --jobid={id} -N1 -n1 -w {} --serve-model=stub sh -c '{ASK}' >{output} 2>&1",
        second.name()
    );
    let running = login.command("alice", ["sh", "-c", &step]).spawn("/dev/null")?;
    let told = format!("the agent of {}", first.name());
    until("the step to say whom it waits for", || {
        Ok(login.read_text(&output).is_ok_and(|text| text.contains(&told)))
    })?;
    site.start_agent(first)?;
    until("the step to have its model", || {
        Ok(login
            .read_text(&output)
            .is_ok_and(|text| reached(&text).len() == 1))
    })
    .with_context(|| login.read_text(&output).unwrap_or_default())?;
    let status = running.wait(Duration::from_secs(10))?;
    ensure!(status.success(), "{status}");
    job.cancel()
}

fn array(site: &Site) -> Result<()> {
    let script = format!("#!/bin/sh\nsleep 1; {ASK}\n");
    let argv = [
        "--serve-model=stub",
        "--array=1-3",
        "-o",
        "/home/alice/array-%A-%a.out",
    ];
    let job = submit(site, &argv, &script, &[])?;
    let login = site.lab.login();
    let outputs = || -> Vec<String> {
        let output = |task| login.read_text(format!("/home/alice/array-{}-{task}.out", job.id));
        (1..=3).filter_map(|task| output(task).ok()).collect()
    };
    until("every task's answer", || {
        Ok(outputs()
            .iter()
            .filter(|output| reached(output).len() == 1)
            .count()
            == 3)
    })
    .with_context(|| format!("{:?}", outputs()))?;
    let outputs = outputs();
    let mut at: Vec<&str> = outputs.iter().flat_map(|output| reached(output)).collect();
    at.sort_unstable();
    at.dedup();
    ensure!(at.len() == 3, "a server each: {outputs:?}");
    Ok(())
}

fn heterogeneous(site: &Site) -> Result<()> {
    let script = format!(
        "#!/bin/sh\n{ASK}\nsrun --het-group=0 -n1 sh -c '{ASK}'\nsrun --het-group=1 -n1 sh -c '{ASK}'\n"
    );
    let argv = ["--serve-model=stub", "-N1", ":", "-N1", "--mem=500"];
    let output = completed(&submit(site, &argv, &script, &[])?)?;
    let at = reached(&output);
    ensure!(
        at.len() == 3 && at.iter().all(|one| *one == at[0]),
        "one server for all: {output}"
    );
    // The step of another component may be the first to ask.
    let script = format!("srun --het-group=1 -n1 sh -c '{ASK}'; srun --het-group=0 -n1 sh -c '{ASK}'");
    let argv = [
        "salloc",
        "--serve-model=stub",
        "--mem=500",
        "-N1",
        ":",
        "-N1",
        "--mem=500",
        "sh",
        "-c",
        &script,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    let at = reached(&said.out);
    ensure!(said.code == 0 && at.len() == 2 && at[0] == at[1], "{said:?}");
    Ok(())
}

/// Two jobs on one node, a GPU each: each server sees its own.
fn a_gpu_each(site: &Site) -> Result<()> {
    let node = site.node(1);
    let argv = ["-w", node.name(), "--gres=gpu:1", "--serve-model=stub"];
    let script = "sleep 300";
    let jobs = [
        site.sbatch("alice", &argv, script)?,
        site.sbatch("bob", &argv, script)?,
    ];
    let mut seen = Vec::new();
    for job in &jobs {
        job.wait_model("ready")?;
        let engine = job.stub()?;
        let environment = std::fs::read(format!("/proc/{}/environ", engine.process.pid))?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let gpus = environment
            .split('\0')
            .find_map(|entry| entry.strip_prefix("SLURM_STEP_GPUS="))
            .map(str::to_owned);
        seen.push(gpus.with_context(|| format!("no GPU in {environment:?}"))?);
    }
    ensure!(seen[0] != seen[1], "{seen:?}");
    Ok(())
}
