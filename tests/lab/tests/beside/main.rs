//! A lab beside a Slurm that is installed and at work: it must not touch it.
//!
//! The machine of this test is the controller node of an outer lab. slurmctld, slurmd and munged run on it, on
//! default ports and paths, and so does a job. An inner lab is brought up on it by the `lab` command, used, and taken
//! down; the machine is listed before and after. Needs root and debootstrap, as every lab does.

mod inner;
mod listing;
mod machine;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serve_lab::wait_for;

use inner::{CALLER, Inner};
use machine::{Machine, SOON};

#[test]
fn a_slurm_at_work_is_left_alone() -> Result<()> {
    let machine = Machine::up()?;
    let host = format!("{}\n", machine.node().name());
    let job = machine.start_job()?;
    let still_running = format!("{job} RUNNING\n");
    let before = machine.settled()?;
    let kinds: BTreeSet<_> = before.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        kinds,
        listing::KINDS.into(),
        "a listing that misses a kind proves nothing"
    );

    // One that fails half-way, and says why: slurmctld reads its configuration after the nodes were born.
    let refused = inner::up(&machine, &["--set", "NoSuchKey=1"]).output()?;
    let why = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        !refused.status.success() && why.contains("NoSuchKey"),
        "{}: {why}",
        refused.status
    );
    machine.assert_as(&before)?;

    let inner = Inner::up(&machine)?;
    let shown = machine.listing()?.to_string();
    ensure!(
        shown.contains(&inner.folder()),
        "the listing doesn't show a running lab:\n{shown}"
    );
    inner.assert_no_process_has_the_callers_environment(&before)?;

    // One user's jobs of one number in both clusters: the end of the one is not the end of the other.
    let twin = inner.run("alice", &["sbatch", "--parsable", "--wrap", "sleep 600"])?;
    assert_eq!(twin.trim(), job);
    let queue = || inner.run("alice", &["squeue", "-h", "-o", "%i %T"]);
    wait_for(SOON, "the inner lab's job to run", || {
        Ok((queue()? == still_running).then_some(()))
    })?;
    inner.run("alice", &["scancel", "-u", "alice"])?;
    wait_for(SOON, "the inner lab's job to be gone", || {
        Ok(queue()?.is_empty().then_some(()))
    })?;
    assert_eq!(machine.queue()?, still_running);

    // Jobs in both at the same time.
    let script = "echo started; until test -e go; do sleep 0.1; done; env; hostname";
    let working = inner.spawn("alice", &["srun", "sh", "-c", script])?;
    let said = || inner.said();
    wait_for(SOON, "the inner lab's job to start", || {
        Ok(said()?.contains("started").then_some(()))
    })
    .with_context(|| said().unwrap_or_default())?;
    assert_eq!(machine.srun(&["hostname"])?, host);
    inner.run("alice", &["touch", "go"])?;
    ensure!(working.wait(SOON)?.success(), "the inner lab's job: {}", said()?);
    let said = said()?;
    assert_eq!(said.lines().last(), Some(format!("{}-n1", inner.id).as_str()));
    for (name, value) in CALLER {
        ensure!(
            !said.contains(value),
            "the caller's {name} reached a job:\n{said}"
        );
    }

    inner.down()?;
    machine.assert_as(&before)?;
    assert_eq!(machine.queue()?, still_running);
    assert_eq!(machine.srun(&["hostname"])?, host);
    machine.down()
}
