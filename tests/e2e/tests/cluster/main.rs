//! The end-to-end tests: one site (a lab with the product on it) for all, one test after the other, each checked for what it leaves behind.
//!
//! `cargo test -p serve-e2e --test cluster -- NAME` runs some; `SERVE_E2E=stub` leaves out what needs the real vLLM.

mod agent;
mod ends;
mod faults;
mod interactive;
mod life;
mod refused;
mod strangers;
mod wear;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use serve_e2e::{Engine, Options, Site, tour};
use serve_lab::{Node, wait_for};
use std::time::Duration;

/// One test: its name and what it does.
type Test = (&'static str, fn(&Site) -> Result<()>);

/// How long a node may take until nothing is left of a test's jobs: KillWait and an epilog, with room to spare.
const CLEAN: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // They share the nodes that they check.
    arguments.test_threads = Some(1);
    let engine = if std::env::var("SERVE_E2E").is_ok_and(|which| which == "stub") {
        Engine::Stub
    } else {
        Engine::Real
    };
    let mut tests: Vec<Test> = [
        life::TESTS,
        refused::TESTS,
        faults::TESTS,
        interactive::TESTS,
        strangers::TESTS,
        ends::TESTS,
        agent::TESTS,
        wear::TESTS,
    ]
    .concat();
    if engine == Engine::Real {
        tests.push(("real_vllm_from_sbatch_to_the_empty_node", real_vllm));
    }
    if arguments.list {
        libtest_mimic::run(
            &arguments,
            tests
                .into_iter()
                .map(|(name, _)| Trial::test(name, || Ok(())))
                .collect(),
        )
        .exit();
    }
    let site = Arc::new(
        Site::up(&Options {
            engine,
            ..Options::default()
        })
        .context("the site does not come up")?,
    );
    let trials = tests.into_iter().map(|(name, test)| {
        let site = site.clone();
        Trial::test(name, move || {
            run(&site, test).map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Ok(site) = Arc::try_unwrap(site).map_err(|_| ()) {
        site.down()?;
    }
    conclusion.exit_if_failed();
    Ok(())
}

fn run(site: &Site, test: fn(&Site) -> Result<()>) -> Result<()> {
    let before = tour::snapshots(site)?;
    let result = test(site);
    site.repair()?;
    site.cancel_all()?;
    for (node, before) in site.lab.compute().iter().zip(&before) {
        let clean = node.wait_until_clean(before, CLEAN);
        if result.is_ok() {
            clean?;
        }
        let state = site.node_state(node)?;
        if state.contains("drain") || state.contains("down") {
            bail!("{} is {state} after the test", node.name());
        }
    }
    result
}

fn real_vllm(site: &Site) -> Result<()> {
    tour::tour(site, "tiny", &mut |_| {}).map(|_| ())
}

/// What an agent answers to a caller that is none of the product's own programs (see `src/bin/stranger.rs`).
fn stranger(node: &Node, user: &str, argv: &[&str]) -> Result<String> {
    let argv = [&["/usr/lib/slurm-serve/stranger"], argv].concat();
    node.command(user, argv).run()
}

/// Waits for what should come soon.
fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(Duration::from_secs(20), what, || Ok(condition()?.then_some(())))
}
