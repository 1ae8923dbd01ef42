//! The end-to-end tests: one site (a lab with the product on it) for all, one test after the other, each checked for what it leaves behind.
//!
//! `cargo test -p serve-e2e --test cluster -- NAME` runs some; `SLURM=26.05` takes another release than 24.11; `SERVE_E2E=stub` leaves out
//! what needs the real vLLM, which is put into the 24.11 lab alone. The filter `core` picks the few of [`CORE`].

mod agent;
mod clock;
mod ends;
mod faults;
mod interactive;
mod life;
mod ports;
mod refused;
mod restart;
mod silence;
mod strangers;
mod ways;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use serve_e2e::endings::{self, Verdict};
use serve_e2e::{Engine, Options, Site, tour};
use serve_lab::{Node, Release, wait_for};
use std::time::Duration;

/// One test: its name and what it does.
type Test = (&'static str, fn(&Site) -> Result<()>);

/// What every release must show in every run of the CI: one of each way through plugin, agent, runner and gateway. Their names are shown
/// with `[core]` in front.
const CORE: &[&str] = &[
    "the_script_starts_when_the_model_is_ready",
    "a_job_cancelled_while_loading_leaves_nothing",
    "steps_and_nested_jobs_share_or_need_no_server",
    "an_untagged_job_sees_nothing_of_us",
    "ends_that_were_asked_for_are_told_apart",
    "an_unknown_model_is_refused_at_submission",
    "options_smuggled_past_the_check_are_refused_on_the_node",
    "srun_alone_makes_a_job_with_a_model",
    "steps_of_a_tagged_salloc_share_its_model",
    "an_engine_that_dies_while_loading_fails_the_job",
    "another_user_gets_nothing_by_grpc",
    "without_an_agent_a_tagged_job_waits_then_fails",
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // They share the nodes that they check.
    arguments.test_threads = Some(1);
    let options = Options::default();
    let stub_only = std::env::var("SERVE_E2E").is_ok_and(|which| which == "stub");
    let engine = if stub_only || options.release != Release::default() {
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
        ports::TESTS,
        ends::TESTS,
        clock::TESTS,
        silence::TESTS,
        restart::TESTS,
        agent::TESTS,
        ways::TESTS,
    ]
    .concat();
    if engine == Engine::Real {
        tests.push(("real_vllm_from_sbatch_to_the_empty_node", real_vllm));
    }
    if let Some(name) = CORE
        .iter()
        .find(|name| tests.iter().all(|(test, _)| test != *name))
    {
        bail!("there is no test {name}, but CORE names it");
    }
    let rows = endings::all().filter(|row| row.core).map(Case::Row);
    let cases = tests
        .into_iter()
        .map(|(name, test)| Case::Test(name, test))
        .chain(rows);
    if arguments.list {
        let trials = cases.map(|case| case.trial(|_| Ok(())));
        libtest_mimic::run(&arguments, trials.collect()).exit();
    }
    let site = Site::up(&Options { engine, ..options }).context("the site does not come up")?;
    let site = Arc::new(site);
    let trials = cases.map(|case| {
        let site = site.clone();
        case.trial(move |case| case.run(&site))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Ok(site) = Arc::try_unwrap(site).map_err(|_| ()) {
        site.down()?;
    }
    conclusion.exit_if_failed();
    Ok(())
}

/// What is run: a test of its own, or a scenario of the table of endings.
#[derive(Clone, Copy)]
enum Case {
    Test(&'static str, fn(&Site) -> Result<()>),
    Row(&'static endings::Row),
}

impl Case {
    fn trial(self, run: impl FnOnce(Self) -> Result<()> + Send + 'static) -> Trial {
        let (name, core) = match self {
            Self::Test(name, _) => (name.to_owned(), CORE.contains(&name)),
            Self::Row(row) => (format!("ending: {}", row.name), row.core),
        };
        let trial = Trial::test(name, move || {
            run(self).map_err(|error| Failed::from(format!("{error:#}")))
        });
        trial.with_kind(if core { "core" } else { "" })
    }

    fn run(self, site: &Site) -> Result<()> {
        match self {
            Self::Test(_, test) => site.checked(test),
            Self::Row(row) => match endings::play(site, row).verdict {
                Verdict::Met => Ok(()),
                Verdict::Failed(why) | Verdict::Pending(why) => bail!(why),
            },
        }
    }
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
