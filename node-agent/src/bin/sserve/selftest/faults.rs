//! What nobody asked for: a process killed, an agent restarted.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm_serve::selftest::Facts;
use slurm_serve_proto::v1::{Cause, ModelState};

use super::bench::{Bench, SOON, Serving, until};
use super::endings::{cause, still_runs, why};
use super::row::Outcome;

/// Between two questions while the agent is away.
const BREATH: Duration = Duration::from_millis(50);

/// The engine dies by SIGKILL.
pub async fn engine_killed(bench: &Bench) -> Result<Outcome> {
    if let Some(skip) = elsewhere(bench) {
        return Ok(skip);
    }
    let job = bench.serving(&[]).await?;
    let engine = job.ask(1).await?;
    ensure_engine(&engine)?;
    let killed = Instant::now();
    end(engine.pid)?;
    let model = bench.model_over(job.id, SOON).await?;
    let noticed = killed.elapsed();
    // SIGKILL is how the kernel ends a process for memory, and nobody can tell it from ours.
    let known = matches!(why(&model), Cause::EngineDied | Cause::OutOfMemory);
    ensure!(known, "the model says {:?} of its end", cause(&model));
    still_runs(bench, &job).await?;
    Ok(Outcome::pass(format!(
        "pid {}: told as {:?} after {noticed:.1?}, job {} goes on",
        engine.pid,
        cause(&model),
        job.id
    )))
}

/// The runner dies by SIGKILL: nobody is left to end the engine but Slurm.
pub async fn runner_killed(bench: &Bench) -> Result<Outcome> {
    if let Some(skip) = elsewhere(bench) {
        return Ok(skip);
    }
    let job = bench.serving(&[]).await?;
    let engine = job.ask(1).await?;
    ensure_engine(&engine)?;
    let runner = parent(engine.pid)?;
    let killed = Instant::now();
    end(runner)?;
    let model = bench.model_over(job.id, SOON).await?;
    let noticed = killed.elapsed();
    // The child has a session of its own, and no parent that would end it.
    let mut pids = vec![engine.pid];
    pids.extend(engine.child);
    until("Slurm to end the engine and its child", SOON, async || {
        Ok(pids.iter().all(|pid| is_gone(*pid)).then_some(()))
    })
    .await?;
    let gone = killed.elapsed();
    still_runs(bench, &job).await?;
    Ok(Outcome::pass(format!(
        "pid {runner}: told as {:?} after {noticed:.1?}; engine and a child in a session of its own gone after {gone:.1?}",
        cause(&model)
    )))
}

/// The agent is restarted while the model is asked all the time.
pub async fn agent_restart(bench: &Bench) -> Result<Outcome> {
    let Some(command) = &bench.plan.restart_agent else {
        return Ok(Outcome::skip("not allowed: --restart-agent"));
    };
    if !bench.is_here || !bench.is_root {
        return Ok(Outcome::skip(format!("run it as root on {}", bench.node)));
    }
    let job = bench.serving(&[]).await?;
    let before = job.ask(1).await?;
    let restarting = restart(bench, command, &job);
    tokio::pin!(restarting);
    let mut asked = 0;
    let took = loop {
        tokio::select! {
            done = &mut restarting => break done?,
            () = tokio::time::sleep(BREATH) => {
                job.ask(1).await.with_context(|| format!("question {} during the restart", asked + 1))?;
                asked += 1;
            }
        }
    };
    let after = job.ask(1).await?;
    ensure!(
        after.pid == before.pid,
        "another engine answers: pid {} after {}",
        after.pid,
        before.pid
    );
    Ok(Outcome::pass(format!(
        "`{command}`: the new agent has the model back after {took:.1?}; {} questions meanwhile, all answered by the same engine",
        asked + 1
    )))
}

/// Until the new agent has the model of the old one.
async fn restart(bench: &Bench, command: &str, job: &Serving) -> Result<Duration> {
    let started = Instant::now();
    let mut shell = tokio::process::Command::new("sh");
    // stdout is ours, for the rows.
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    let status = tokio::time::timeout(SOON, shell.status()).await;
    let status = status.with_context(|| format!("`{command}` did not end within {} s", SOON.as_secs()))??;
    ensure!(status.success(), "`{command}`: {status}");
    until("the new agent to have the model", SOON, async || {
        let Ok(found) = bench.find(job.id).await else {
            return Ok(None);
        };
        match found.model.state() {
            ModelState::Ready if found.model.generation == job.model.generation => {
                Ok(Some(started.elapsed()))
            }
            ModelState::Failed | ModelState::Ended => bail!("{}", bench.how_it_ended(job.id).await),
            _ => Ok(None),
        }
    })
    .await
}

/// Processes are seen and signalled only where they are.
fn elsewhere(bench: &Bench) -> Option<Outcome> {
    (!bench.is_here).then(|| {
        Outcome::skip(format!(
            "run it on {}: its processes can't be signalled from here",
            bench.node
        ))
    })
}

/// The pid is what the engine calls itself: inside a PID namespace of its job it would be somebody else's here.
fn ensure_engine(engine: &Facts) -> Result<()> {
    let line = std::fs::read(format!("/proc/{}/cmdline", engine.pid)).unwrap_or_default();
    ensure!(
        String::from_utf8_lossy(&line).contains("selftest-engine"),
        "pid {} is not the engine here: do jobs have PID namespaces of their own?",
        engine.pid
    );
    Ok(())
}

fn parent(pid: u32) -> Result<u32> {
    let process = procfs::process::Process::new(i32::try_from(pid)?)?;
    Ok(u32::try_from(process.stat()?.ppid)?)
}

fn end(pid: u32) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)
        .with_context(|| format!("pid {pid} can't be killed"))
}

/// Gone, or waiting for its parent to notice.
fn is_gone(pid: u32) -> bool {
    let process = i32::try_from(pid)
        .ok()
        .and_then(|pid| procfs::process::Process::new(pid).ok());
    process
        .and_then(|process| process.stat().ok())
        .is_none_or(|stat| stat.state == 'Z')
}
