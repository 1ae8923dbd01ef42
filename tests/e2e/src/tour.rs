//! The whole path of a served model, from sbatch to the empty node: what `make demo` shows, and what a test proves with the same code.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serve_lab::{Snapshot, wait_for};

use crate::Site;

/// The job's script: a plain client, which knows nothing of us but the environment that every OpenAI client reads.
const SCRIPT: &str = r#"/opt/vllm/bin/python - <<'PY'
import os
from openai import OpenAI

client = OpenAI()
answer = client.chat.completions.create(
    model=os.environ["SERVE_MODEL"],
    messages=[{"role": "user", "content": "What is a node?"}],
    max_tokens=12,
)
print("the job got", answer.usage.completion_tokens, "tokens from", client.base_url, flush=True)
PY
sleep infinity
"#;

/// A client on the login node: streams through the gateway, and says what it got.
const STREAM: &str = r#"
import sys
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8700/v1", api_key="none")
pieces = 0
for chunk in client.chat.completions.create(
    model=sys.argv[1], messages=[{"role": "user", "content": "Count"}], max_tokens=16, stream=True
):
    if chunk.choices and chunk.choices[0].delta.content:
        pieces += 1
print(pieces, "pieces, streamed")
"#;

/// How long things took.
#[derive(Debug)]
pub struct Summary {
    /// From sbatch to the model in the gateway's list.
    pub to_ready: Duration,
    /// From scancel to its being gone from there.
    pub to_gone: Duration,
    /// From scancel to nothing left on the nodes.
    pub to_clean: Duration,
}

/// Takes the whole path for the recipe `model`, and tells each step by `say`.
pub fn tour(site: &Site, model: &str, say: &mut dyn FnMut(&str)) -> Result<Summary> {
    let before = snapshots(site)?;
    let started = Instant::now();
    say(&format!("alice$ sbatch --serve-model={model} client.sh"));
    let job = site.sbatch(
        "alice",
        &[
            &format!("--serve-model={model}"),
            "--mem=12000",
            "--cpus-per-task=2",
        ],
        SCRIPT,
    )?;
    say(&format!("Submitted batch job {}", job.id));

    let mut told = 0;
    wait_for(
        Duration::from_secs(300),
        "the job's client to get its answer",
        || {
            let output = job.output();
            for line in output.lines().skip(told) {
                say(&format!("  job {}: {line}", job.id));
                told += 1;
            }
            if job.state()? == "FAILED" {
                bail!("the job failed");
            }
            Ok(output.contains("the job got").then_some(()))
        },
    )
    .with_context(|| job.explain())?;
    let listed = wait_for(Duration::from_secs(5), "the model in the gateway's list", || {
        Ok(site
            .models()?
            .contains(&model.to_owned())
            .then(|| started.elapsed()))
    })?;

    let login = site.lab.login();
    let shown: [&[&str]; 3] = [
        &["sserve", "list"],
        &["curl", "-sS", "http://127.0.0.1:8700/v1/models"],
        &["squeue", "-s", "-o", "%.10i %.10j %.8u %N"],
    ];
    for command in shown {
        say(&format!("alice$ {}", command.join(" ")));
        let output = login.command("alice", command.iter().copied()).run()?;
        output.lines().for_each(|line| say(&format!("  {line}")));
        if !output.contains(model) && command[0] != "squeue" {
            bail!("{} does not show {model}", command.join(" "));
        }
        if command[0] == "squeue" && !output.contains(&format!("{}.0", job.id)) {
            bail!("squeue shows no step {}.0", job.id);
        }
    }

    say("alice$ python stream.py    # through the gateway, by the official openai client");
    let streamed = login
        .command("alice", ["/opt/vllm/bin/python", "-", model])
        .input(STREAM)
        .run()?;
    say(&format!("  {}", streamed.trim()));
    let pieces: u32 = streamed
        .split(' ')
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    if pieces < 2 {
        bail!("the answer did not come in pieces: {streamed}");
    }

    say(&format!("alice$ scancel {}", job.id));
    let cancelled = Instant::now();
    job.cancel()?;
    wait_for(
        Duration::from_secs(30),
        "the model to leave the gateway's list",
        || Ok((!site.models()?.contains(&model.to_owned())).then_some(())),
    )?;
    let to_gone = cancelled.elapsed();
    job.wait_end()?;
    for (node, before) in site.lab.compute().iter().zip(&before) {
        node.wait_until_clean(before, Duration::from_secs(30))
            .with_context(|| job.explain())?;
    }
    Ok(Summary {
        to_ready: listed,
        to_gone,
        to_clean: cancelled.elapsed(),
    })
}

/// What there is on each compute node now.
pub fn snapshots(site: &Site) -> Result<Vec<Snapshot>> {
    site.lab.compute().iter().map(|node| node.snapshot()).collect()
}

impl Summary {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "  sbatch → in the catalog      {:7.2} s",
            self.to_ready.as_secs_f64()
        );
        let _ = writeln!(
            text,
            "  scancel → out of the catalog {:7.2} s",
            self.to_gone.as_secs_f64()
        );
        let _ = writeln!(
            text,
            "  scancel → nothing left       {:7.2} s",
            self.to_clean.as_secs_f64()
        );
        text
    }
}
