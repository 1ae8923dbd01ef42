//! Other users, other nodes, other programs: what they may not have, they don't get, and are told in one line.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serve_e2e::{Job, Site, has};
use serve_lab::wait_for;

use crate::{Test, stranger, until};

/// All of them.
pub const TESTS: &[Test] = &[
    ("another_user_gets_nothing_by_sserve", by_sserve),
    ("another_user_gets_nothing_by_grpc", by_grpc),
    ("a_user_who_floods_the_agent_locks_nobody_out", flooded),
    ("a_job_tells_its_key_to_its_owner_alone", key_stays),
    ("nobody_else_can_be_the_runner", false_runners),
    (
        "who_makes_his_srun_client_something_else_gets_nothing_of_the_node",
        client_is_held,
    ),
    (
        "over_tcp_only_a_fresh_credential_for_this_very_call_counts",
        credentials,
    ),
    (
        "a_credential_of_another_munge_key_or_of_long_ago_does_not_count",
        foreign_credentials,
    ),
    (
        "who_stands_where_an_agent_should_is_not_believed_and_reads_no_key",
        impostor,
    ),
    ("only_the_agents_of_a_jobs_nodes_are_its_peers", peers),
    ("the_guard_wants_the_jobs_key", guard),
    ("what_is_not_published_is_the_jobs_alone", unpublished),
];

/// A job of alice's on the first node with a model that is ready.
fn ready(site: &Site) -> Result<Job<'_>> {
    let job = site.sbatch(
        "alice",
        &["-w", site.node(1).name(), "--serve-model=stub"],
        "sleep 300",
    )?;
    job.wait_model("ready")?;
    Ok(job)
}

fn by_sserve(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let id = job.id.to_string();
    for verb in [
        &["status"] as &[&str],
        &["logs"],
        &["stop"],
        &["url"],
        &["url", "--env"],
    ] {
        for node in [site.lab.login(), site.node(1)] {
            let argv = [&["sserve"], verb, &[&id]].concat();
            let output = node.command("bob", argv.iter().copied()).output()?;
            let err = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.code() == Some(3) && output.stdout.is_empty(),
                "{argv:?} on {}: {output:?}",
                node.name()
            );
            ensure!(err.lines().count() == 1, "not one line: {err}");
            has(&err, &[&id, "not yours"])?;
        }
    }
    // What is public, he sees: the name, whose it is, where.
    let list = site.say("bob", &["sserve", "list"], "", &[])?;
    has(&list.out, &["stub", "alice", site.node(1).name()])?;
    ensure!(job.model()?["state"] == "ready", "nothing of that did any harm");
    Ok(())
}

fn by_grpc(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let (node, id) = (site.node(1), job.id.to_string());
    let stub = r#"{"model": "stub"}"#;
    let refused = |argv: &[&str], begins: &str| -> Result<()> {
        let answer = stranger(node, "bob", argv)?;
        ensure!(
            answer.starts_with(begins) && answer.lines().count() == 1,
            "{argv:?}: {answer}"
        );
        Ok(())
    };
    for call in ["get", "await", "log", "stop"] {
        refused(&[call, &id], "NOT_FOUND: job ")?;
        // Word for word what he is told of a job that does not exist.
        let (his, none) = (
            stranger(node, "bob", &[call, &id])?,
            stranger(node, "bob", &[call, "4000000"])?,
        );
        ensure!(his.replace(&id, "4000000") == none, "{his} {none}");
    }
    refused(&["open", &id, stub], "PERMISSION_DENIED: ")?;
    // Nor does he make its model one of an earlier run, so that its own steps wait for that one's end.
    refused(&["open", &id, stub, "4000000000"], "PERMISSION_DENIED: ")?;
    let own = stranger(node, "alice", &["open", &id, stub])?;
    ensure!(own.starts_with("OK ") && !own.contains("launch: true"), "{own}");
    refused(&["launch", &id, stub], "PERMISSION_DENIED: ")?;
    refused(&["started", &id, "2002", stub], "PERMISSION_DENIED: ")?;
    refused(&["ending", &id], "PERMISSION_DENIED: ")?;
    refused(&["ended", &id], "PERMISSION_DENIED: ")?;
    // The hooks are root's, even for the owner.
    let own = stranger(node, "alice", &["ended", &id])?;
    has(&own, &["PERMISSION_DENIED: ", "only root"])?;

    let listed = stranger(node, "bob", &["list"])?;
    has(
        &listed,
        &[
            "OK [",
            "\"stub\"",
            "\"alice\"",
            "\"key\":\"\"",
            "\"log_path\":\"\"",
        ],
    )?;
    let address = format!("{}:871", node.name());
    let get = |user: &str| stranger(site.lab.login(), user, &["tcp-get", &address, node.name(), &id]);
    has(&get("bob")?, &["NOT_FOUND: job "])?;
    // The owner gets the key over TCP sealed, never as it is.
    let (_, key) = job.endpoint()?;
    let sealed = get("alice")?;
    has(&sealed, &["OK ", "\"key\":\"MUNGE:"])?;
    ensure!(!sealed.contains(&key), "the key went over the wire in clear text");
    has(&stranger(node, "alice", &["get", &id])?, &[&key])?;
    ensure!(job.model()?["state"] == "ready");
    Ok(())
}

/// What an agent asks another on a user's behalf is answered to root alone, from a node of the job, for the job's owner.
fn peers(site: &Site) -> Result<()> {
    let (first, second) = (site.node(1), site.node(2));
    let job = site.sbatch("alice", &["-w", first.name(), "--serve-model=stub"], "sleep 300")?;
    job.wait_model("ready")?;
    let (id, address) = (job.id.to_string(), format!("{}:871", first.name()));
    let uid = |user: &str| -> Result<String> {
        let uid = second.command("root", ["id", "-u", user]).run()?;
        Ok(uid.trim().to_owned())
    };
    let ask = |by: &str, for_whom: &str, from: &str| {
        let argv = ["peer", &address, first.name(), &id, &uid(for_whom)?, from];
        stranger(second, by, &argv)
    };
    let (_, key) = job.endpoint()?;
    has(
        &ask("alice", "alice", first.name())?,
        &["PERMISSION_DENIED", "not uid"],
    )?;
    has(
        &ask("root", "alice", second.name())?,
        &["FAILED_PRECONDITION", "none of its nodes"],
    )?;
    has(&ask("root", "bob", first.name())?, &["NOT_FOUND"])?;
    let answer = ask("root", "alice", first.name())?;
    has(&answer, &["OK ", "\"key\":\"MUNGE:"])?;
    ensure!(!answer.contains(&key), "the key went over the wire in clear text");
    Ok(())
}

/// bob holds all the connections he can get, and asks of hundreds of jobs at once; alice's job gets its model all the same.
fn flooded(site: &Site) -> Result<()> {
    let node = site.node(1);
    let mut crowds = Vec::new();
    for name in ["agent.sock", "agent.ports"] {
        let (socket, log) = (
            format!("/run/slurm-serve/{name}"),
            format!("/tmp/crowd-{name}.log"),
        );
        let argv = ["/usr/lib/slurm-serve/stranger", "crowd", "2000", &socket];
        crowds.push(node.command("bob", argv).spawn(&log)?);
        let held = || Ok(node.read_text(&log)?.trim().parse::<u32>().ok());
        let held = wait_for(Duration::from_secs(20), "bob to hold what he gets", held)?;
        ensure!(
            (16..=512).contains(&held),
            "bob holds {held} connections to {name}"
        );
    }
    let flood = node
        .command("bob", ["/usr/lib/slurm-serve/stranger", "flood", "400"])
        .spawn("/tmp/flood.log")?;
    let mut most = 0;
    let job = site.sbatch(
        "alice",
        &["-w", node.name(), "--serve-model=stub"],
        "echo model $SERVE_MODEL",
    )?;
    until("alice's job to be over", || {
        let running = node.processes()?;
        let asking = running.iter().filter(|one| one.command.starts_with("squeue -h"));
        most = most.max(asking.count());
        Ok(job.output().contains("\nmodel stub\n"))
    })
    .with_context(|| job.explain())?;
    // Four of bob's questions, and what the agent asks for itself.
    ensure!(most <= 8, "{most} commands of Slurm's at once");
    ensure!(stranger(node, "alice", &["list"])?.starts_with("OK ["));
    has(&site.whole_agent_log(node)?, &["no more are taken from it"])?;
    flood.kill()?;
    for crowd in crowds {
        crowd.kill()?;
    }
    let rm = "rm -f /tmp/crowd-*.log /tmp/flood.log";
    node.command("root", ["sh", "-c", rm]).run().map(drop)
}

/// Not on a command line, in a log, or in a file that others can read.
fn key_stays(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let (_, key) = job.endpoint()?;
    ensure!(key.len() >= 20, "a short key: {key}");
    for node in site.lab.nodes() {
        for running in node.processes()? {
            ensure!(
                !running.command.contains(&key),
                "in the command line of {}",
                running.command
            );
        }
        // As bob, wherever he can look: files that hold it, and any environment that he may read.
        let search = "grep -rlF -- \"$KEY\" /run /tmp /var/lib/slurm-serve /var/log /home/alice /etc/slurm-serve /proc/[0-9]*/environ 2>/dev/null";
        let found = node
            .command("bob", ["sh", "-c", search])
            .env("KEY", &key)
            .output()?;
        let found: Vec<String> = String::from_utf8_lossy(&found.stdout)
            .lines()
            .filter(|path| !is_own_environment(node, path))
            .map(str::to_owned)
            .collect();
        ensure!(found.is_empty(), "bob reads it on {}: {found:?}", node.name());
    }
    let id = job.id;
    let logs = [
        site.lab
            .login()
            .read_text(format!("/home/alice/serve-{id}.log"))?,
        site.whole_agent_log(site.node(1))?,
        job.output(),
    ];
    ensure!(logs.iter().all(|log| !log.contains(&key)), "in a log");
    Ok(())
}

/// The search's own environment holds what it searches for.
fn is_own_environment(node: &serve_lab::Node, path: &str) -> bool {
    path.starts_with("/proc/") && node.read(path).is_err()
}

fn false_runners(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let (node, id) = (site.node(1), job.id.to_string());
    let model = stranger(node, "alice", &["get", &id])?;
    let generation = model
        .split("\"generation\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .with_context(|| model.clone())?
        .to_owned();
    let attach = |user: &str, words: &[&str]| -> Result<()> {
        let answer = stranger(node, user, &["attach", &id, &generation, "0123456789abcdef"])?;
        has(&answer, words)
    };
    attach("bob", &["PERMISSION_DENIED: ", "not yours"])?;
    attach("alice", &["PERMISSION_DENIED: ", "not in a step of job"])?;
    let unknown = stranger(node, "alice", &["attach", &id, "1.2.3-4"])?;
    has(&unknown, &["NOT_FOUND: "])?;

    // In a step of the job, and even with the nonce that bought the runner its secret: the client's environment still shows it.
    let environ = std::fs::read(format!("/proc/{}/environ", job.srun_client(site.node(1))?))?;
    let environ = String::from_utf8_lossy(&environ);
    let nonce = environ
        .split('\0')
        .find_map(|entry| entry.strip_prefix("SLURM_SERVE_NONCE="))
        .context("no nonce in its environment")?;
    let jobid = format!("--jobid={id}");
    for proof in ["0123456789abcdef", nonce] {
        let argv = [
            "srun",
            &jobid,
            "--overlap",
            "-N1",
            "-n1",
            "/usr/lib/slurm-serve/stranger",
            "attach",
            &id,
            &generation,
            proof,
        ];
        let said = site.say("alice", &argv, "", &[])?;
        has(&said.out, &["PERMISSION_DENIED: ", "neither nonce nor secret"])?;
    }
    // With the true one's secret, which root alone can read, there is still room for one only.
    let secrets = node.read_text(format!("/run/slurm-serve/secrets/{generation}.json"))?;
    let secrets: serde_json::Value = serde_json::from_str(&secrets)?;
    let secret = secrets["secret"].as_str().context("no secret")?;
    let argv = [
        "srun",
        &jobid,
        "--overlap",
        "-N1",
        "-n1",
        "/usr/lib/slurm-serve/stranger",
        "attach",
        &id,
        &generation,
        "",
        secret,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    has(&said.out, &["ALREADY_EXISTS: "])?;
    let stolen = node
        .command("alice", ["ls", "/run/slurm-serve/secrets"])
        .output()?;
    ensure!(!stolen.status.success(), "secrets are root's: {stolen:?}");
    ensure!(job.model()?["state"] == "ready", "the true one is still there");
    let (status, _) = site.ask("stub", "")?;
    ensure!(status == 200);
    Ok(())
}

/// What alice could make of her client by ptrace(2) is played by a process of hers that is put where the client is.
fn client_is_held(site: &Site) -> Result<()> {
    let node = site.node(1);
    let job = ready(site)?;
    let client = job.srun_client(site.node(1))?;
    let groups: Vec<std::path::PathBuf> = std::fs::read_to_string(format!("/proc/{client}/cgroup"))?
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controller, path) = (parts.next()?, parts.next()?);
            path.contains("_slurm-serve/").then(|| {
                std::path::Path::new("/sys/fs/cgroup")
                    .join(controller)
                    .join(path.trim_start_matches('/'))
            })
        })
        .collect();
    ensure!(!groups.is_empty(), "the client is in no cgroup of ours");

    let script = "until [ -e /tmp/enter ]; do :; done; : < /dev/null && echo null is open; : < /dev/nvidia0; \
                  n=0; while [ $n -lt 100 ]; do sleep 600 & n=$((n+1)); done; sleep 600";
    let log = "/tmp/taken.log";
    let taken = node.command("alice", ["bash", "-c", script]).spawn(log)?;
    for group in &groups {
        std::fs::write(group.join("cgroup.procs"), taken.process().pid.to_string())?;
    }
    node.install_file("/tmp/enter", "", 0o644)?;
    let said = || node.read_text(log).unwrap_or_default();
    let devices = groups
        .iter()
        .any(|group| group.starts_with("/sys/fs/cgroup/devices"));
    wait_for(Duration::from_secs(20), "it to meet its limits", || {
        let said = said();
        let is_refused = !devices || said.contains("/dev/nvidia0: Operation not permitted");
        Ok((said.contains("null is open") && is_refused && said.contains("fork")).then_some(()))
    })
    .with_context(said)?;
    // The model is not harmed by it.
    let (status, _) = site.ask("stub", "")?;
    ensure!(status == 200);

    site.say("alice", &["scancel", &job.id.to_string()], "", &[])?;
    job.wait_end()?;
    wait_for(Duration::from_secs(30), "all of it to be gone", || {
        Ok((!taken.is_running()? && !groups.iter().any(|group| group.exists())).then_some(()))
    })?;
    node.command("root", ["rm", "/tmp/enter", log]).run()?;
    Ok(())
}

fn credentials(site: &Site) -> Result<()> {
    let (login, node) = (site.lab.login(), site.node(1));
    let address = format!("{}:871", node.name());
    let ask = |credential: &str| stranger(login, "bob", &["tcp", &address, node.name(), credential]);
    let refused = |credential: &str, why: &str| -> Result<()> {
        let answer = ask(credential)?;
        ensure!(answer.lines().count() == 1, "{answer}");
        has(&answer, &["UNAUTHENTICATED: ", why]).with_context(|| credential.to_owned())
    };
    ensure!(ask("good")?.starts_with("OK ["), "{}", ask("good")?);
    refused("none", "no munge credential")?;
    refused("rubbish", "munge: ")?;
    refused("other-node", "another node")?;
    refused("other-method", "another method")?;
    let twice = ask("replayed")?;
    let answers: Vec<&str> = twice.lines().collect();
    ensure!(answers.len() == 2 && answers[0].starts_with("OK ["), "{twice}");
    has(answers[1], &["UNAUTHENTICATED: ", "eplay"])?;
    // Made for this node, used at the other one.
    let other = site.node(2);
    let elsewhere = stranger(
        login,
        "bob",
        &["tcp", &format!("{}:871", other.name()), node.name(), "good"],
    )?;
    has(&elsewhere, &["UNAUTHENTICATED: ", "another node"])?;
    // That an agent lives is no secret.
    has(&stranger(login, "bob", &["health", &address])?, &["OK Serving"])
}

/// Made by hand, with munge's own program: by a munged with another key, and one that has expired since.
fn foreign_credentials(site: &Site) -> Result<()> {
    let (login, node) = (site.lab.login(), site.node(1));
    let address = format!("{}:871", node.name());
    let payload = |nonce: u32| {
        format!(
            "/slurm_serve.v1.Catalog/ListModels\n{}\n{nonce:032x}\n",
            node.name()
        )
    };
    let make = |nonce, more: &[&str]| -> Result<String> {
        let payload = payload(nonce);
        let argv = [&["munge", "--restrict-uid=0", "--string", &payload], more].concat();
        Ok(login.command("bob", argv).run()?.trim().to_owned())
    };
    let ask = |credential: &str| stranger(login, "bob", &["replay", &address, credential]);
    ensure!(ask(&make(1, &[])?)?.starts_with("OK ["), "one like ours counts");

    let realm = "install -d -o munge -m 755 /run/realm && head -c 1024 /dev/urandom > /run/realm/key && \
                 chown munge /run/realm/key && chmod 400 /run/realm/key";
    login.command("root", ["sh", "-c", realm]).run()?;
    let files = [
        "key-file=key",
        "socket=socket",
        "pid-file=pid",
        "log-file=log",
        "seed-file=seed",
    ]
    .map(|file| {
        let (option, name) = file.split_once('=').unwrap_or_default();
        format!("--{option}=/run/realm/{name}")
    });
    let mut argv = vec!["/usr/sbin/munged".to_owned(), "--foreground".into()];
    argv.extend(files);
    let munged = login.command("munge", argv).spawn("/tmp/realm.log")?;
    let socket = "--socket=/run/realm/socket";
    until("the other munged to answer", || Ok(make(2, &[socket]).is_ok()))?;
    let answer = ask(&make(3, &[socket])?)?;
    ensure!(answer.lines().count() == 1, "{answer}");
    has(&answer, &["UNAUTHENTICATED: munge: ", "nvalid credential"])?;
    munged.kill()?;
    let rm = "rm -rf /run/realm /tmp/realm.log";
    login.command("root", ["sh", "-c", rm]).run()?;

    let made = std::time::Instant::now();
    let short = make(4, &["--ttl=1"])?;
    until("it to expire", || Ok(made.elapsed() > Duration::from_secs(3)))?;
    has(&ask(&short)?, &["UNAUTHENTICATED: munge: ", "xpired credential"])
}

/// A site may give agents a port that any user can have: bob has it while the agent is away, and keeps what alice's client sends.
fn impostor(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let (login, first, second, id) = (site.lab.login(), site.node(1), site.node(2), job.id.to_string());
    let (_, key) = job.endpoint()?;
    let (own, log) = (format!("{}:871", first.name()), "/tmp/impostor.log");
    site.end_agent(first, nix::sys::signal::Signal::SIGTERM)?;
    let impostor = |port: &str| {
        let argv = ["/usr/lib/slurm-serve/stranger", "impostor", port];
        first.command("bob", argv)
    };
    let refused = impostor("871").output()?;
    ensure!(
        !refused.status.success(),
        "the port that comes with the product is root's: {refused:?}"
    );

    let stands = impostor("8871").spawn(log)?;
    let asks = || {
        stranger(
            login,
            "alice",
            &["tcp-get", &format!("{}:8871", first.name()), first.name(), &id],
        )
    };
    let mut answer = String::new();
    until("alice to be answered", || {
        answer = asks()?;
        Ok(!answer.contains("refused"))
    })?;
    // What it says is not taken for the agent's.
    has(&answer, &["not proven to come from root"])?;
    ensure!(!answer.contains("false.example"), "{answer}");
    let credential = first
        .read_text(log)?
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    ensure!(credential.starts_with("MUNGE:"), "{credential}");
    stands.kill()?;

    // It names the node, and so is of no use anywhere else.
    let replay = |address: &str| stranger(second, "bob", &["replay", address, &credential, &id]);
    let elsewhere = replay(&format!("{}:871", second.name()))?;
    has(&elsewhere, &["UNAUTHENTICATED: ", "another node"])?;
    // On its own node it counts, once, as the call that alice meant: bob sees what she would, but her key is sealed for her.
    site.start_agent(first)?;
    job.wait_model("ready")?;
    let answer = replay(&own)?;
    has(&answer, &["OK ", "\"key\":\"MUNGE:"])?;
    ensure!(!answer.contains(&key), "the key came in clear text");
    let sealed = answer
        .split("\"key\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let open = |user: &str| {
        let open = second.command(user, ["sh", "-c", "printf %s \"$SEALED\" | unmunge"]);
        open.env("SEALED", sealed.unwrap_or_default()).output()
    };
    let bobs = open("bob")?;
    ensure!(!bobs.status.success(), "bob opens it: {bobs:?}");
    ensure!(
        !String::from_utf8_lossy(&bobs.stdout).contains(&key),
        "bob reads it"
    );
    has(&String::from_utf8_lossy(&open("alice")?.stdout), &[&key])?;
    has(&replay(&own)?, &["UNAUTHENTICATED: ", "eplay"])?;
    first.command("root", ["rm", log]).run().map(drop)
}

fn guard(site: &Site) -> Result<()> {
    let job = ready(site)?;
    let (url, key) = job.endpoint()?;
    let models = format!("{url}/models");
    let root = url.trim_end_matches("/v1");
    let right = format!("Authorization: Bearer {key}");
    let (status, body) = site.curl(&["-H", &right, &models])?;
    ensure!(status == 200 && body.contains("\"stub\""), "{status}: {body}");
    for wrong in ["X: y", "Authorization: Bearer wrong", "Authorization: Bearer "] {
        let (status, body) = site.curl(&["-H", wrong, &models])?;
        ensure!(status == 401, "{wrong}: {status} {body}");
    }
    // What vLLM leaves open is shut, with the key as well.
    for path in ["/pause", "/sleep", "/collective_rpc", "/_stub/state", "/docs"] {
        let (status, body) = site.curl(&["-H", &right, &format!("{root}{path}")])?;
        ensure!(
            status == 404 || status == 403 || status == 405,
            "{path}: {status} {body}"
        );
    }
    Ok(())
}

fn unpublished(site: &Site) -> Result<()> {
    let node = site.node(1);
    let arguments = ["-w", node.name(), "--serve-model=stub", "--serve-publish=no"];
    let job = site.sbatch("alice", &arguments, "sleep 300")?;
    job.wait_model("ready")?;
    let (url, key) = job.endpoint()?;
    let right = format!("Authorization: Bearer {key}");
    let (status, _) = site.curl(&["-H", &right, &format!("{url}/models")])?;
    ensure!(status == 200, "the owner may use it: {status}");
    ensure!(site.models()?.is_empty(), "{:?}", site.models()?);
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 404, "{status}: {body}");
    ensure!(stranger(node, "bob", &["list"])?.trim() == "OK []");
    has(&stranger(node, "alice", &["list"])?, &["\"stub\""])
}
