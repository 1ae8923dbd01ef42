//! The port of a model whose runner is gone: nobody else has it while somebody may still send prompts and keys there.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serve_e2e::{Job, Site, has};
use serve_lab::Background;

use crate::{Test, until};

/// All of them.
pub const TESTS: &[Test] = &[
    ("the_port_of_a_killed_runner_is_nobody_elses", killed),
    (
        "the_port_of_a_runner_killed_after_its_agent_is_nobody_elses",
        killed_after_agent,
    ),
    (
        "the_port_of_a_runner_killed_before_its_agent_is_held_again",
        killed_before_agent,
    ),
    ("no_request_reaches_the_thief_of_a_port", no_request_stolen),
];

/// A job of alice's whose model is ready on the first node, and how it is asked.
struct Served<'a> {
    site: &'a Site,
    job: Job<'a>,
    url: String,
    key: String,
}

impl<'a> Served<'a> {
    fn ready(site: &'a Site) -> Result<Self> {
        let node = site.node(1).name();
        let job = site.sbatch("alice", &["-w", node, "--serve-model=stub"], "sleep 300")?;
        job.wait_model("ready")?;
        until("the model at the gateway", || {
            Ok(site.models()?.contains(&"stub".into()))
        })?;
        let (url, key) = job.endpoint()?;
        Ok(Self { site, job, url, key })
    }

    fn kill_runner(&self) -> Result<()> {
        self.job.runner(self.site.node(1))?.signal(Signal::SIGKILL)
    }

    /// Another user on the node wants the port.
    fn thief(&self) -> Result<Background> {
        let port = self.url.trim_end_matches("/v1").rsplit(':').next();
        let argv = [
            "/usr/lib/slurm-serve/stranger",
            "grab",
            port.context("a port")?,
            "60",
        ];
        let thief = self.site.node(1).command("bob", argv).spawn(self.thiefs_log())?;
        until("the thief to try", || Ok(!self.loot().is_empty()))?;
        Ok(thief)
    }

    fn thiefs_log(&self) -> String {
        format!("/var/log/thief-{}.log", self.job.id)
    }

    fn loot(&self) -> String {
        self.site.node(1).read_text(self.thiefs_log()).unwrap_or_default()
    }

    /// Asks the port itself; `None`: nobody listens there.
    fn ask(&self) -> Result<Option<String>> {
        let login = self.site.lab.login();
        let bearer = format!("Authorization: Bearer {}", self.key);
        let models = format!("{}/models", self.url);
        let argv = ["curl", "-sSi", "--max-time", "20", "-H", &bearer, &models];
        let said = login.command("alice", argv).output()?;
        Ok(said
            .status
            .success()
            .then(|| String::from_utf8_lossy(&said.stdout).to_lowercase()))
    }

    /// The agent answers in its place.
    fn is_told_that_it_is_gone(&self) -> Result<()> {
        let answer = self.ask()?.context("nobody answers")?;
        has(
            &answer,
            &[
                "http/1.1 503",
                "retry-after: ",
                "connection: close",
                "has ended here",
            ],
        )
    }

    /// Once all is over the port is anybody's, and until then it was ours.
    fn is_free_in_the_end(&self) -> Result<()> {
        until("the port to be free again", || match self.ask()? {
            Some(answer) if answer.contains("stolen") && self.site.models()?.contains(&"stub".into()) => {
                bail!("the thief has it, and the gateway still sends requests there")
            }
            Some(answer) if !answer.contains("503") && !answer.contains("stolen") => {
                bail!("answered by whom? {answer}")
            }
            _ => Ok(self.loot().contains("bound")),
        })
        .with_context(|| self.job.explain())
    }
}

/// The gateway can't let go while it is frozen, so what is ours for its sake is seen.
fn killed(site: &Site) -> Result<()> {
    let served = Served::ready(site)?;
    held(&served)
}

fn killed_after_agent(site: &Site) -> Result<()> {
    let served = Served::ready(site)?;
    site.end_agent(site.node(1), Signal::SIGKILL)?;
    site.start_agent(site.node(1))?;
    until("the new agent to have the port", || {
        let ours = format!("generation=\"{}.", served.job.id);
        let log = site.whole_agent_log(site.node(1))?;
        Ok(log
            .lines()
            .any(|line| line.contains("has its port back") && line.contains(&ours)))
    })?;
    until("the gateway to know", || {
        Ok(site.models()?.contains(&"stub".into()))
    })?;
    held(&served)
}

fn held(served: &Served) -> Result<()> {
    let site = served.site;
    let thief = served.thief()?;
    site.signal_gateway(Signal::SIGSTOP)?;
    let seen = served
        .kill_runner()
        .and_then(|()| served.is_told_that_it_is_gone());
    site.signal_gateway(Signal::SIGCONT)?;
    seen?;
    served.is_free_in_the_end()?;
    let model = served.job.model()?;
    ensure!(model["ending"]["cause"] == "runner_lost", "{model}");
    thief.kill()
}

fn killed_before_agent(site: &Site) -> Result<()> {
    let served = Served::ready(site)?;
    site.signal_gateway(Signal::SIGSTOP)?;
    let seen = (|| {
        served.kill_runner()?;
        served.is_told_that_it_is_gone()?;
        site.end_agent(site.node(1), Signal::SIGKILL)?;
        site.start_agent(site.node(1))?;
        // The gateway has not heard of it and may believe what it knows for as long as its lease runs.
        served.is_told_that_it_is_gone()
    })();
    site.signal_gateway(Signal::SIGCONT)?;
    seen?;
    let thief = served.thief()?;
    served.is_free_in_the_end()?;
    let model = served.job.model()?;
    ensure!(model["ending"]["cause"] == "runner_lost", "{model}");
    thief.kill()
}

/// With everything at its usual speed: through the gateway there is the model, then an error, and never somebody else.
fn no_request_stolen(site: &Site) -> Result<()> {
    let served = Served::ready(site)?;
    let thief = served.thief()?;
    served.kill_runner()?;
    let mut gone = false;
    until(
        "the thief to have the port, and the gateway to know nothing of the model",
        || {
            let (status, body) = site.ask("stub", "")?;
            ensure!(!body.contains("stolen") && status != 200, "{status}: {body}");
            gone |= !site.models()?.contains(&"stub".into());
            Ok(gone && served.loot().contains("bound"))
        },
    )?;
    for _ in 0..5 {
        let (status, body) = site.ask("stub", "")?;
        ensure!(!body.contains("stolen"), "{status}: {body}");
    }
    thief.kill()
}
