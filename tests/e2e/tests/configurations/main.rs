//! The product on clusters that are set up otherwise: each configuration of Slurm that changes how our hooks are called, or what they
//! and the tasks see, on a site of its own.
//!
//! `cargo test -p serve-e2e --test configurations -- NAME` runs some; `SLURM` chooses the release. What a release does not have is no
//! test there.

mod shapes;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use serve_e2e::{Options, Site, has, tour};
use serve_lab::{LabSpec, Release, wait_for};

/// A way to set up a cluster.
#[derive(Clone, Copy)]
struct Configuration {
    name: &'static str,
    /// The releases that have it, from the first to the last.
    releases: (Release, Release),
    shape: fn(LabSpec) -> Result<LabSpec>,
    /// Variables that a job brings along, `,NAME=VALUE` for --export.
    environment: &'static str,
    /// A command of the job's script and what it must print: that the configuration is in force there.
    proof: (&'static str, &'static str),
}

/// One that every release has and whose effect no job can see.
const fn any(name: &'static str, shape: fn(LabSpec) -> Result<LabSpec>) -> Configuration {
    Configuration {
        name,
        releases: (Release::V22_05, Release::V26_05),
        shape,
        environment: "",
        proof: ("true", ""),
    }
}

const fn since_24_11(name: &'static str, shape: fn(LabSpec) -> Result<LabSpec>) -> Configuration {
    Configuration {
        releases: (Release::V24_11, Release::V26_05),
        ..any(name, shape)
    }
}

const ALL: &[Configuration] = &[
    any("without_prolog_flags", shapes::no_prolog_flags),
    any("prolog_flags_alloc", |spec| {
        Ok(spec.setting("PrologFlags", "Alloc"))
    }),
    any("prolog_flags_contain", |spec| {
        Ok(spec.setting("PrologFlags", "Contain"))
    }),
    since_24_11("prolog_flags_run_in_job", |spec| {
        Ok(spec.setting("PrologFlags", "Contain,RunInJob"))
    }),
    any("proctrack_linuxproc", shapes::linuxproc),
    since_24_11("contain_spank", shapes::contain_spank),
    Configuration {
        proof: ("[ -e /tmp/of-the-node ] || echo private", "private"),
        ..any("job_container_tmpfs", shapes::job_container)
    },
    Configuration {
        proof: ("[ -e /tmp/of-the-node ] || echo private", "private"),
        ..since_24_11("job_container_tmpfs_and_contain_spank", |spec| {
            shapes::job_container(shapes::contain_spank(spec)?)
        })
    },
    Configuration {
        environment: ",FOREIGN_NAMESPACE=yes",
        proof: ("[ -e /run/slurm-serve ] || echo private", "private"),
        ..any("a_container_plugin_before_ours", |spec| {
            shapes::foreign(spec, "aaa")
        })
    },
    Configuration {
        environment: ",FOREIGN_NAMESPACE=yes",
        proof: ("[ -e /run/slurm-serve ] || echo private", "private"),
        ..any("a_container_plugin_after_ours", |spec| {
            shapes::foreign(spec, "zzz")
        })
    },
    any("kill_wait_5", |spec| Ok(spec.setting("KillWait", "5"))),
    Configuration {
        proof: (
            "echo $SLURM_CONF; [ -e /etc/slurm ] || echo elsewhere",
            "/opt/site/slurm.conf\nelsewhere",
        ),
        ..any("slurm_conf_elsewhere", shapes::elsewhere)
    },
    Configuration {
        proof: ("[ -e /etc/slurm ] || echo configless", "configless"),
        ..any("configless", shapes::configless)
    },
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // Each has a cluster of its own; one at a time is enough for a machine.
    arguments.test_threads = Some(1);
    let release = Options::default().release;
    let here = |configuration: &&Configuration| {
        let place = |release| Release::ALL.iter().position(|known| *known == release);
        let (first, last) = configuration.releases;
        (place(first)..=place(last)).contains(&place(release))
    };
    let trials = ALL.iter().filter(here).map(|configuration| {
        Trial::test(configuration.name, || {
            on_a_site(configuration).map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn on_a_site(configuration: &Configuration) -> Result<()> {
    let mut shaped = Ok(());
    let site = Site::up_with(&Options::default(), |spec| {
        (configuration.shape)(spec.clone()).unwrap_or_else(|error| {
            shaped = Err(error);
            spec
        })
    });
    shaped?;
    let site = site.context("the site does not come up")?;
    let before = tour::snapshots(&site)?;
    let result = passes(&site, configuration);
    site.cancel_all()?;
    for (node, before) in site.lab.compute().iter().zip(&before) {
        let clean = node.wait_until_clean(before, Duration::from_secs(30));
        if result.is_ok() {
            clean?;
        }
        let state = site.node_state(node)?;
        ensure!(
            !state.contains("drain") && !state.contains("down"),
            "{} is {state}",
            node.name()
        );
        let log = node.read_text("/var/log/slurm/slurmd.log")?;
        let fault = log
            .lines()
            .find(|line| line.contains("a fault of") || line.contains("was not told"));
        ensure!(fault.is_none(), "slurmd's log: {}", fault.unwrap_or_default());
    }
    result?;
    site.down()
}

/// Prints the answer's status.
const ASK: &str = r#"curl -sS -o /dev/null -w "%{http_code} at $SERVE_MODEL_URL\n" -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models""#;

fn passes(site: &Site, configuration: &Configuration) -> Result<()> {
    let export = format!("--export=ALL{}", configuration.environment);
    let (proof, proven) = configuration.proof;
    script_ends(site, &export, proof, proven).context("a job whose script ends")?;
    srun_alone(site, &export).context("srun alone")?;
    cancelled(site, &export).context("a job that is cancelled")?;
    cancelled_while_loading(site, &export).context("a job that is cancelled while it waits")?;
    untagged(site, &export).context("an untagged job")
}

fn script_ends(site: &Site, export: &str, proof: &str, proven: &str) -> Result<()> {
    let script = format!("echo proof; {proof}; echo; {ASK}; exit 3");
    let job = site.sbatch("alice", &["--serve-model=stub", export], &script)?;
    let state = job.wait_end()?;
    let output = job.output();
    ensure!(
        state == "FAILED" && job.field("ExitCode")? == "3:0",
        "{state}: {}",
        job.explain()
    );
    has(&output, &["200 at http://", &format!("proof\n{proven}")]).with_context(|| job.explain())?;
    // The plugin said that the script was done, while the model still answered.
    let told = format!("ending job={}", job.id);
    let logs: Vec<String> = site
        .lab
        .compute()
        .iter()
        .map(|node| site.agent_log(node))
        .collect();
    ensure!(
        logs.iter().any(|log| log.contains(&told)),
        "no agent was told of the script's end: {logs:?}"
    );
    Ok(())
}

fn srun_alone(site: &Site, export: &str) -> Result<()> {
    let argv = [
        "srun",
        "--mem=500",
        "-n2",
        "--overcommit",
        export,
        "--serve-model=stub",
        "sh",
        "-c",
        ASK,
    ];
    let said = site.say("alice", &argv, "", &[])?;
    ensure!(
        said.code == 0 && said.out.matches("200 at http://").count() == 2,
        "{said:?}"
    );
    Ok(())
}

fn cancelled(site: &Site, export: &str) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=stub", export], "sleep 300")?;
    job.wait_model("ready")?;
    let listed = |wanted: bool| {
        wait_for(Duration::from_secs(20), "the gateway to follow", || {
            Ok((site.models()?.contains(&"stub".to_owned()) == wanted).then_some(()))
        })
    };
    listed(true)?;
    let (status, body) = site.ask("stub", "")?;
    ensure!(status == 200, "{status}: {body}");
    job.cancel()?;
    listed(false)?;
    ensure!(job.wait_end()? == "CANCELLED", "{}", job.explain());
    let model = job.model()?;
    ensure!(model["state"] == "ended", "{model}");
    Ok(())
}

fn cancelled_while_loading(site: &Site, export: &str) -> Result<()> {
    let job = site.sbatch("alice", &["--serve-model=loading", export], "echo it ran")?;
    job.wait_output("loading")?;
    job.cancel()?;
    let state = job.wait_end()?;
    ensure!(
        state == "CANCELLED" || state == "FAILED",
        "{state}: {}",
        job.explain()
    );
    ensure!(!job.output().contains("it ran"), "{}", job.explain());
    Ok(())
}

fn untagged(site: &Site, export: &str) -> Result<()> {
    let job = site.sbatch("bob", &[export], "env; echo the end; exit 7")?;
    ensure!(
        job.wait_end()? == "FAILED" && job.field("ExitCode")? == "7:0",
        "{}",
        job.explain()
    );
    let output = job.output();
    has(&output, &["the end"])?;
    let ours = ["OPENAI_", "SERVE_", "serve:"]
        .into_iter()
        .find(|word| output.contains(word));
    if let Some(word) = ours {
        bail!("{word} in the output of a job that did not ask: {output}");
    }
    Ok(())
}
