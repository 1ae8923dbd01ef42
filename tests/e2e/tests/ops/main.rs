//! What admins have to hand, on a cluster of their own: `sserve health` as Slurm's HealthCheckProgram, `sserve doctor`, `sserve selftest`.
//!
//! `cargo test -p serve-e2e --test ops -- NAME` runs some; `SLURM=26.05` takes another release than 24.11.

mod doctor;
mod health;
mod scope;
mod selftest;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use serve_e2e::{Options, Site};
use serve_lab::{On, wait_for};

/// One test: its name and what it does.
type Test = (&'static str, fn(&Site) -> Result<()>);

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // They share the nodes that they change.
    arguments.test_threads = Some(1);
    let tests: Vec<Test> = [health::TESTS, doctor::TESTS, selftest::TESTS, scope::TESTS].concat();
    if arguments.list {
        let listed = tests.into_iter().map(|(name, _)| Trial::test(name, || Ok(())));
        libtest_mimic::run(&arguments, listed.collect()).exit();
    }
    let options = Options {
        settings: [
            ("HealthCheckProgram", health::PROGRAM),
            ("HealthCheckInterval", "1"),
            ("HealthCheckNodeState", "ANY"),
            // Time enough for a request in flight at a job's end.
            ("KillWait", "20"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..Options::default()
    };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../slurm-conf/health-check.sh");
    let site = Site::up_with(&options, |spec| spec.bind(On::Compute, health::PROGRAM, program));
    let site = Arc::new(site.context("the site does not come up")?);
    let trials = tests.into_iter().map(|(name, test)| {
        let site = site.clone();
        Trial::test(name, move || {
            let result = test(&site).and_then(|()| site.cancel_all());
            let repaired = site.repair();
            result
                .and(repaired)
                .map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Ok(site) = Arc::try_unwrap(site).map_err(|_| ()) {
        site.down()?;
    }
    conclusion.exit_if_failed();
    Ok(())
}

/// Waits for what should come soon.
fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(Duration::from_secs(30), what, || Ok(condition()?.then_some(())))
}
