//! Somebody does harm on purpose.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::endings::row::{Bound, Fate, Group, JobFate, Row};
use crate::endings::scene::Scene;

pub const GROUP: Group = Group {
    title: "Somebody does harm",
    text: "A user may ruin his own model, not another's, and not the node.",
    rows: &[
        Row::new(
            "a user kills his own srun client",
            "`pkill -KILL srun` by the job's owner on the node; bob's model beside it serves on",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            Bound::Gone(Duration::from_secs(1)),
            kills_own,
        ),
        Row::new(
            "a user stops his own srun client",
            "`pkill -STOP srun` by the job's owner, then `scancel`: it ends all the same, and nothing is left",
            Fate::Ends("cancelled"),
            JobFate::Is("CANCELLED"),
            Bound::NoneLost,
            |scene| {
                scene.on_node("alice", &["pkill", "-STOP", "-u", "alice", "srun"])?;
                scene.until_answered(20)?;
                scene.strike();
                scene.job.cancel()
            },
        ),
        Row::new(
            "another user tries the port of a dead runner",
            "The runner is killed while bob tries to take its port: no prompt reaches him",
            Fate::Fails("runner_lost"),
            JobFate::GoesOn,
            Bound::Gone(Duration::from_secs(1)),
            port_thief,
        ),
    ],
};

fn kills_own(scene: &Scene) -> Result<()> {
    let beside = ["-w", scene.node.name(), "--serve-model=stub"];
    let beside = scene.site.sbatch("bob", &beside, "sleep 300")?;
    let before = beside.wait_model("ready")?;
    scene.strike();
    scene.on_node("alice", &["pkill", "-KILL", "-o", "-u", "alice", "srun"])?;
    scene.until("the model to be gone", || {
        Ok(!scene.watch.is_listed(&scene.generation))
    })?;
    let (status, body) = scene.site.ask("stub", "")?;
    ensure!(status == 200, "bob's model: {status} {body}");
    let after = beside.model()?;
    ensure!(
        after["generation"] == before["generation"] && after["state"] == "ready",
        "{after}"
    );
    Ok(())
}

/// Takes a port as soon as it is free, for five seconds, and says who came.
const THIEF: &str = r#"
import socket, sys, time
port, end = int(sys.argv[1]), time.time() + 5
print("trying", flush=True)
while time.time() < end:
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        thief.bind(("0.0.0.0", port))
    except OSError:
        thief.close()
        continue
    thief.listen()
    print("took it", flush=True)
    thief.settimeout(max(end - time.time(), 0.1))
    try:
        client, _ = thief.accept()
        client.settimeout(2)
        print("got", client.recv(10000), flush=True)
    except OSError:
        pass
    break
print("done", flush=True)
"#;

fn port_thief(scene: &Scene) -> Result<()> {
    let model = scene.job.model()?;
    let url = model["base_url"].as_str().unwrap_or_default();
    let port = url.trim_end_matches("/v1").rsplit(':').next().unwrap_or_default();
    let runner = scene.runner()?;
    let log = format!("/tmp/thief-{}", scene.job.id);
    let argv = ["python3", "-c", THIEF, port];
    let thief = scene.node.command("bob", argv).spawn(&log)?;
    let said = || scene.node.read_text(&log).unwrap_or_default();
    scene.until("the thief to try", || Ok(said().contains("trying")))?;
    scene.hit(&runner, nix::sys::signal::Signal::SIGKILL)?;
    thief.wait(Duration::from_secs(15))?;
    let said = said();
    scene.on_node("root", &["rm", &log])?;
    ensure!(
        said.contains("done") && !said.contains("got"),
        "bob was sent something: {said}"
    );
    Ok(())
}
