//! What is wrong with a request is said where it is made, in one line, and nothing is queued. What can't be known there, or is kept from
//! the check there, is refused on the node: the job fails, the node stays in service.

use anyhow::{Context, Result, ensure};
use serve_e2e::{Job, Said, Site, has};
use serve_lab::Node;

use crate::Test;

/// All of them.
pub const TESTS: &[Test] = &[
    ("an_unknown_model_is_refused_at_submission", unknown_model),
    ("a_typo_in_a_recipe_is_shown_with_file_and_line", typo_in_recipe),
    ("a_users_own_recipe_is_served_under_his_name", own_recipe),
    ("a_users_recipe_cannot_take_an_admins_name", admins_name),
    ("no_text_in_an_option_does_harm", texts),
    ("our_own_flags_are_refused_in_every_spelling", owned_flags),
    (
        "options_smuggled_past_the_check_are_refused_on_the_node",
        smuggled,
    ),
    ("what_grpc_carries_is_checked_as_well", over_grpc),
];

const RECIPES: &str = ".config/slurm-serve/models.d";

/// The commands that take our options, each asked to run `true`.
fn commands(site: &Site, options: &[&str]) -> Result<Vec<Said>> {
    let commands: [(&[&str], &str); 3] = [
        (&["sbatch", "--mem=100"], "#!/bin/sh\ntrue\n"),
        (&["srun", "--mem=100", "-n1"], ""),
        (&["salloc", "--mem=100"], ""),
    ];
    let mut said = Vec::new();
    for (command, input) in commands {
        let mut argv = command.to_vec();
        argv.extend(options);
        if input.is_empty() {
            argv.push("true");
        }
        said.push(site.say("alice", &argv, input, &[])?);
        let queue = site.queue()?;
        ensure!(queue.is_empty(), "{argv:?} left in the queue: {queue}");
    }
    Ok(said)
}

fn refused(site: &Site, options: &[&str], words: &[&str]) -> Result<()> {
    for said in commands(site, options)? {
        said.one_line(words).with_context(|| format!("{options:?}"))?;
    }
    Ok(())
}

/// sbatch alone: every command checks by the same code, so one shows what that code does with a text.
fn sbatch_refuses(site: &Site, options: &[&str], words: &[&str]) -> Result<()> {
    let mut argv = vec!["sbatch", "--mem=100"];
    argv.extend(options);
    let said = site.say("alice", &argv, "#!/bin/sh\ntrue\n", &[])?;
    said.one_line(words).with_context(|| shown(options))?;
    ensure!(site.queue()?.is_empty(), "queued: {}", shown(options));
    Ok(())
}

fn shown(options: &[&str]) -> String {
    format!("{options:?}").chars().take(200).collect()
}

fn unknown_model(site: &Site) -> Result<()> {
    refused(
        site,
        &["--serve-model=stbu"],
        &["there is no model \"stbu\"", "did you mean stub"],
    )
}

/// Puts a recipe of alice's own in place for one test.
fn with_recipe<T>(site: &Site, name: &str, text: &str, test: impl FnOnce() -> Result<T>) -> Result<T> {
    let login = site.lab.login();
    let path = format!("{RECIPES}/{name}.toml");
    let write = format!("mkdir -p {RECIPES} && cat > {path}");
    login.command("alice", ["sh", "-c", &write]).input(text).run()?;
    let result = test();
    login.command("alice", ["rm", &path]).run()?;
    result
}

const OWN: &str =
    "source = \"/opt\"\ngpus = 0\n\n[engine]\ncommand = [\"/usr/lib/slurm-serve/stub-engine\", \"serve\"]\n";

fn typo_in_recipe(site: &Site) -> Result<()> {
    let text = OWN.replace("gpus = 0", "gpsu = 0");
    with_recipe(site, "typo", &text, || {
        let said = site.say(
            "alice",
            &["sbatch", "--serve-model=typo"],
            "#!/bin/sh\ntrue\n",
            &[],
        )?;
        ensure!(said.code != 0 && site.queue()?.is_empty(), "{said:?}");
        let line = said.ours().into_iter().find(|line| line.contains("typo.toml"));
        has(
            line.with_context(|| said.err.clone())?,
            &[
                "/home/alice/.config/slurm-serve/models.d/typo.toml:2:",
                "gpsu",
                "gpus",
            ],
        )?;
        // It costs its own recipes and nobody else's.
        let job = site.sbatch("alice", &["--serve-model=stub"], "true")?;
        ensure!(job.wait_end()? == "COMPLETED", "{}", job.explain());
        Ok(())
    })
}

fn own_recipe(site: &Site) -> Result<()> {
    with_recipe(site, "mine", OWN, || {
        let job = site.sbatch(
            "alice",
            &["--serve-model=mine"],
            "echo model $SERVE_MODEL; sleep 300",
        )?;
        job.wait_output("model alice/mine\n")?;
        let (status, body) = site.ask("alice/mine", "")?;
        ensure!(status == 200, "{status}: {body}");
        let (status, _) = site.ask("mine", "")?;
        ensure!(status == 404, "a bare name is an admin's: {status}");
        Ok(())
    })
}

fn admins_name(site: &Site) -> Result<()> {
    let text = OWN.replace("/opt", "/home/alice/trap");
    with_recipe(site, "stub", &text, || {
        let said = site.say(
            "alice",
            &["sbatch", "--parsable", "--mem=100", "--serve-model=stub"],
            "#!/bin/sh\necho model $SERVE_MODEL\n",
            &[],
        )?;
        ensure!(said.code == 0 && said.ours().len() == 1, "{said:?}");
        has(said.ours()[0], &["stub is the site's recipe", "rename it"])?;
        let job = site.job("alice", &said.out)?;
        ensure!(job.wait_end()? == "COMPLETED", "{}", job.explain());
        ensure!(job.output().contains("model stub\n"), "{}", job.output());
        Ok(())
    })
}

fn texts(site: &Site) -> Result<()> {
    let long = "x".repeat(100_000);
    let (long_model, long_args) = (
        format!("--serve-model={long}"),
        format!("--serve-args=--seed {long}"),
    );
    let too_long = ["100", "at most"];
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--serve-model=stub; touch /tmp/harm"], &["--serve-model"]),
        (&["--serve-model=$(touch /tmp/harm)"], &["--serve-model"]),
        (&["--serve-model=stub\nmore"], &["--serve-model"]),
        (&["--serve-model=../../etc/passwd"], &["--serve-model"]),
        (&[&long_model], &too_long),
        (&["--serve-model=stub", &long_args], &too_long),
        (
            &["--serve-model=stub", "--serve-args=--seed 1\n--seed 2"],
            &["--serve-args", "'\\n'"],
        ),
        (
            &["--serve-model=stub", "--serve-args=--seed 1;rm -rf ~"],
            &["--serve-args", "rm"],
        ),
        (
            &["--serve-model=stub", "--serve-args=--seed '1"],
            &["--serve-args", "never closed"],
        ),
    ];
    for (options, words) in cases {
        sbatch_refuses(site, options, words)?;
    }
    // What is allowed arrives as it was written: one argument of the engine, which no shell has seen.
    let template = "a b;c $(touch /tmp/harm) `id` \"q\" *";
    let args = format!("--serve-args=--chat-template '{template}' --seed 7");
    let job = site.sbatch(
        "alice",
        &["--serve-model=stub", &args],
        "echo model $SERVE_MODEL; sleep 300",
    )?;
    job.wait_output("model alice/stub\n")?;
    let stub = job.stub()?;
    ensure!(
        stub.command
            .contains(&format!("--chat-template {template} --seed 7")),
        "{}",
        stub.command
    );
    for node in site.lab.nodes() {
        let harm = node
            .command("root", ["ls", "/tmp/harm", "/home/alice/harm"])
            .output()?;
        ensure!(harm.stdout.is_empty(), "harm on {}", node.name());
    }
    Ok(())
}

fn owned_flags(site: &Site) -> Result<()> {
    let spellings = [
        "--port 1",
        "--port=1",
        "--host 0.0.0.0",
        "--uds /tmp/x",
        "--served-model-name other",
        "--served_model_name=other",
        "--served-mod other",
        "--api-key x",
        "--api_ke x",
        "--root-path /x",
        "--ssl-keyfile /x",
        "--middleware x.y",
        "--config /x",
        "--shutdown-timeout 600",
        "--headless",
        "--nnodes 2",
        "--lora-modules a=/x",
    ];
    for spelling in spellings {
        let args = format!("--serve-args={spelling}");
        sbatch_refuses(site, &["--serve-model=stub", &args], &["--serve-args"])?;
    }
    refused(
        site,
        &["--serve-model=stub", "--serve-args=--port 1"],
        &["--serve-args", "--port"],
    )
}

/// What the batch step reads, put into the job's environment by hand (`--export` and `--export-file` carry it): sbatch's check never
/// sees it.
fn smuggled(site: &Site) -> Result<()> {
    let job = |variable: &str, arguments: &[&str]| -> Result<Job> {
        let export = format!("--export=ALL,_SLURM_SPANK_OPTION_serve_{variable}");
        let mut argv = vec!["sbatch", "--parsable", "--mem=100", &export];
        argv.extend(arguments);
        let said = site.say("alice", &argv, "#!/bin/sh\necho it ran\n", &[])?;
        ensure!(said.code == 0, "{said:?}");
        site.job("alice", &said.out)
    };
    let fails = |job: &Job, words: &[&str]| -> Result<()> {
        let state = job.wait_end()?;
        let output = job.output();
        ensure!(
            state == "FAILED" && !output.contains("it ran"),
            "{state}: {}",
            job.explain()
        );
        ensure!(output.lines().count() == 1, "not one line: {output}");
        has(&output, words)
    };
    // Nobody knows of an option: not the prolog either, whose word counts.
    fails(
        &job("serve_model=stub", &[])?,
        &["serve: stub:", "without --serve-model"],
    )?;
    // A tagged job with more than sbatch saw.
    let tagged = &["--serve-model=stub"];
    fails(&job("serve_args=--port 1", tagged)?, &["--serve-args", "--port"])?;
    fails(&job("serve_name=$(id)", tagged)?, &["--serve-name"])?;
    // The variables that sbatch itself reads are checked as options are.
    let inherited = ("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_args", "--port 1");
    let said = site.say(
        "alice",
        &["sbatch", "--mem=100", "--serve-model=stub"],
        "#!/bin/sh\ntrue\n",
        &[inherited],
    )?;
    said.one_line(&["--serve-args", "--port"])
}

/// Whoever speaks gRPC himself is told the same.
fn over_grpc(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = site.sbatch("alice", &["-w", node.name()], "sleep 300")?;
    job.wait_state(&["RUNNING"])?;
    let id = job.id.to_string();
    let ask = |user: &str, argv: &[&str], begins: &str, words: &[&str]| -> Result<()> {
        let answer = crate::stranger(node, user, argv)?;
        ensure!(
            answer.starts_with(begins) && answer.trim_end().lines().count() == 1,
            "{}: {answer}",
            shown(argv)
        );
        has(&answer, words)
    };
    let invalid = "INVALID_ARGUMENT";
    let stub = r#"{"model": "stub"}"#;
    ask(
        "alice",
        &["open", &id, stub],
        "FAILED_PRECONDITION",
        &["without --serve-model"],
    )?;
    ask(
        "alice",
        &["open", "4000000", stub],
        "FAILED_PRECONDITION",
        &["not running on this node"],
    )?;
    // A job whose prolog found no agent: what its owner says is all that is known.
    forget(node, &id)?;
    let long = format!(r#"{{"model": "stub", "args": "--seed {}"}}"#, "1".repeat(100_000));
    let cases: [(&str, &[&str]); 6] = [
        (r#"{"model": "stub\u0000"}"#, &["--serve-model", "\\0"]),
        (
            r#"{"model": "stub", "args": "--seed 1\u0000"}"#,
            &["--serve-args", "\\0"],
        ),
        (
            r#"{"model": "stub", "args": "--port 1"}"#,
            &["--serve-args", "--port"],
        ),
        (
            r#"{"model": "stub", "wait": "maybe"}"#,
            &["--serve-wait", "maybe"],
        ),
        (r#"{"model": "stbu"}"#, &["stbu", "did you mean stub"]),
        (&long, &["--serve-args", "at most"]),
    ];
    for (options, words) in cases {
        ask("alice", &["open", &id, options], invalid, words)?;
        ask("alice", &["launch", &id, options], invalid, words)?;
    }
    let own = r#"{"model": "mine"}"#;
    let recipe = OWN.replace("gpus = 0", "name = \"mine\"\ngpsu = 0");
    ask(
        "alice",
        &["launch", &id, own, &recipe],
        invalid,
        &["your recipe", "gpsu"],
    )?;
    let long = format!("{OWN}# {}\n", "x".repeat(70_000));
    ask(
        "alice",
        &["launch", &id, own, &long],
        invalid,
        &["your recipe", "65536"],
    )?;
    // And the prolog's word is no better: it carries what the user wrote.
    let uid = "2001";
    ask(
        "root",
        &["started", &id, uid, r#"{"model": "stub", "name": "a\nb"}"#],
        "OK",
        &[],
    )?;
    ask("alice", &["open", &id, stub], invalid, &["--serve-name", "\\n"])
}

fn forget(node: &Node, job: &str) -> Result<()> {
    let answer = crate::stranger(node, "root", &["ended", job])?;
    ensure!(answer.starts_with("OK"), "{answer}");
    Ok(())
}
