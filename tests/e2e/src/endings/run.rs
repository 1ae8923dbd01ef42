//! Plays one scenario and checks everything that every scenario must keep.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use serve_lab::wait_for;

use super::report::{Measured, Verdict};
use super::row::{Bound, Fate, JobFate, Row, WAITING_ENDED};
use super::scene::Scene;
use crate::site::Site;

/// How long what is not bounded may take: Slurm's own timers, above all, which look every half minute.
const PATIENCE: Duration = Duration::from_secs(75);
/// Answers before the blow, and requests after it, so that there is something to be seen.
const SOME: usize = 10;

/// Plays a scenario. The site is as before when this returns, and what went wrong is in the verdict.
pub fn play(site: &Site, row: &Row) -> Measured {
    play_after(site, row, Duration::ZERO)
}

/// Plays a scenario whose blow comes after a pause under load.
pub fn play_after(site: &Site, row: &Row, pause: Duration) -> Measured {
    let mut measured = Measured::of(row, site.lease);
    let played = site.checked(|site| scene(site, row, pause, &mut measured));
    measured.verdict = match played {
        Ok(()) => Verdict::Met,
        Err(error) => {
            let resumed = site.resume_nodes().err();
            let also = resumed.map_or(String::new(), |error| format!("; and then: {error:#}"));
            Verdict::Failed(format!("{error:#}{also}"))
        }
    };
    measured
}

fn scene(site: &Site, row: &Row, pause: Duration, measured: &mut Measured) -> Result<()> {
    let node = site.node(1);
    let model = format!("--serve-model={}", row.model);
    let mut arguments = vec!["-w", node.name(), &model];
    arguments.extend(row.arguments);
    let job = site.sbatch("alice", &arguments, row.script)?;
    let generation = text(&job.wait_model("ready")?, "generation");
    let told = site.watch(row.model, |watch| {
        let scene = Scene {
            site,
            node,
            job: job.clone(),
            generation,
            watch,
            struck: Cell::new(None),
        };
        scene.until("the model in the catalog", || {
            Ok(watch.is_listed(&scene.generation))
        })?;
        scene.until_answered(SOME)?;
        std::thread::sleep(pause);
        let before = Instant::now();
        let done = (row.act)(&scene).and_then(|()| {
            let struck = scene.struck.get().unwrap_or(before);
            follow(&scene, row, struck, measured)
        });
        measured.asked = watch.asked();
        done.with_context(|| watch.answers())
    });
    told.and_then(|()| job_fate(site, row, &job, measured))
        .with_context(|| job.explain())
}

/// What becomes of the model, as clients see it and as it is told.
fn follow(scene: &Scene, row: &Row, struck: Instant, measured: &mut Measured) -> Result<()> {
    let (watch, generation) = (scene.watch, &scene.generation);
    if row.fate == Fate::Stays {
        mend(scene, row)?;
        scene.until_answered(SOME)?;
        let last = told(scene, row, measured)?;
        ensure!(text(&last, "generation") == *generation, "another launch: {last}");
        ensure!(watch.gone(generation, struck).is_none(), "it left the catalog");
        let moments = Moments {
            struck,
            seen: None,
            back: None,
        };
        return kept(scene, row, moments, measured);
    }
    let gone = wait_for(PATIENCE, "the model to leave the catalog", || {
        Ok(watch.gone(generation, struck))
    })?;
    measured.seconds = Some((gone - struck).as_secs_f64());
    if let Fate::Anew(cause) = row.fate {
        // Before the next launch takes its place in what is told.
        scene.job.wait_cause(scene.node, cause)?;
        measured.seen = format!("ended: {cause}; then ");
    }
    mend(scene, row)?;
    let mut back = None;
    match row.fate {
        Fate::Returns => {
            let found = wait_for(PATIENCE, "the model to be back in the catalog", || {
                Ok(watch.back(generation, gone))
            })?;
            back = Some(found);
            scene.until_answered(SOME)?;
        }
        Fate::Anew(_) | Fate::Again(_) => {
            let next = wait_for(PATIENCE, "another launch to be ready", || {
                let Ok(model) = scene.job.model() else {
                    return Ok(None);
                };
                let other = text(&model, "generation") != *generation;
                Ok((model["state"] == "ready" && other).then_some(model))
            })?;
            if let Fate::Again(cause) = row.fate {
                ensure!(
                    next["last_failure"]["cause"] == cause,
                    "not lost by {cause}: {next}"
                );
                measured.seen = format!("{cause}; then ");
            }
            let next = text(&next, "generation");
            scene.until("it in the catalog", || Ok(watch.is_listed(&next)))?;
            back = watch.back(&next, gone);
            scene.until_answered(SOME)?;
        }
        _ => {
            let wanted = watch.asked() + SOME;
            scene.until("more requests", || Ok(watch.asked() >= wanted))?;
            ensure!(
                watch.back(generation, gone).is_none(),
                "it came back into the catalog"
            );
        }
    }
    told(scene, row, measured)?;
    let seen = watch.seen_last(generation, gone);
    kept(scene, row, Moments { struck, seen, back }, measured)
}

/// When what was seen.
struct Moments {
    /// The blow.
    struck: Instant,
    /// The last look at the catalog that still had the model.
    seen: Option<Instant>,
    /// The model was back in the catalog.
    back: Option<Instant>,
}

fn mend(scene: &Scene, row: &Row) -> Result<()> {
    row.mend.map_or(Ok(()), |mend| mend(scene))
}

/// What `sserve status` says in the end, and the end of the server's log.
fn told(scene: &Scene, row: &Row, measured: &mut Measured) -> Result<Value> {
    if row.fate == Fate::Forgotten {
        let known = wait_for(PATIENCE, "sserve status to know no such model", || {
            Ok(scene.job.model().is_err().then_some(Value::Null))
        })?;
        measured.seen += "gone";
        return Ok(known);
    }
    let (state, cause) = match row.fate {
        Fate::Forgotten | Fate::Stays | Fate::Returns => ("ready", ""),
        Fate::Ends(cause) => ("ended", cause),
        Fate::Fails(cause) => ("failed", cause),
        // What is told of the job is the next launch's by now.
        Fate::Anew(_) | Fate::Again(_) => ("ready", ""),
    };
    let mut last = Value::Null;
    let told = wait_for(
        PATIENCE,
        &format!("sserve status to say {state} {cause} {}", row.says.join(" ")),
        || {
            let Ok(model) = scene.job.model() else {
                return Ok(None);
            };
            // Slurm's books may add a word a moment later.
            let said = text(&model["ending"], "text");
            let matches = model["state"] == state
                && (cause.is_empty() || model["ending"]["cause"] == cause)
                && row.says.iter().all(|word| said.contains(word));
            last = model;
            Ok(matches.then_some(()))
        },
    );
    measured.seen += &match last["ending"]["cause"].as_str() {
        Some(cause) => format!("{}: {cause}", text(&last, "state")),
        None => text(&last, "state"),
    };
    told.with_context(|| last.to_string())?;
    if let Fate::Fails(_) = row.fate {
        ensure!(
            !text(&last["ending"], "text").is_empty(),
            "no word on what happened: {last}"
        );
    }
    let path = format!("/home/{}/serve-{}.log", scene.job.user, scene.job.id);
    if !row.log.is_empty() {
        let log = scene.site.lab.login().tail(&path, 5);
        for word in row.log {
            ensure!(
                log.contains(word),
                "no {word:?} in the end of the server's log: {log}"
            );
        }
    }
    Ok(last)
}

/// The bound, and the requests.
fn kept(scene: &Scene, row: &Row, moments: Moments, measured: &mut Measured) -> Result<()> {
    let Moments { struck, seen, back } = moments;
    measured.lost = scene.watch.lost(None).len();
    let (within, since) = match row.bound {
        Bound::NoneLost => (None, None),
        Bound::Gone(within) => (Some(within), Some(struck + within)),
        Bound::Lease => (Some(scene.site.lease), Some(struck + scene.site.lease)),
        // Where nothing is promised meanwhile, all is well again in the end.
        Bound::Shown => (None, Some(back.unwrap_or_else(Instant::now))),
    };
    let lost = scene.watch.lost(since);
    if let Some(first) = lost.first() {
        bail!(
            "{} requests were lost that should not have been; the first, {:.2} s after the blow and for {:.2} s: {}",
            lost.len(),
            (first.begun.saturating_duration_since(struck)).as_secs_f64(),
            (first.ended - first.begun).as_secs_f64(),
            first.answer
        );
    }
    // What was measured may be too long by the distance of two looks; this is what is certain.
    if let (Some(within), Some(seen)) = (within, seen) {
        let seen = seen.saturating_duration_since(struck);
        ensure!(
            seen <= within,
            "{:.2} s after the blow it was still in the catalog, not at most for {} s",
            seen.as_secs_f64(),
            within.as_secs_f64()
        );
    }
    Ok(())
}

/// What becomes of the job, and of its own exit code.
fn job_fate(site: &Site, row: &Row, job: &crate::job::Job, measured: &mut Measured) -> Result<()> {
    let expected = match row.job {
        JobFate::RunsAgain => {
            let state = job.wait_state(&["RUNNING"])?;
            measured.seen += &format!(" · {state} again");
            return Ok(());
        }
        JobFate::GoesOn => {
            let state = job.state()?;
            ensure!(state == "RUNNING", "the job should go on, but is {state}");
            let go = format!("go-{}", job.id);
            site.lab.login().command(&job.user, ["touch", &go]).run()?;
            WAITING_ENDED
        }
        JobFate::Is(expected) => expected,
    };
    let state = job.wait_end()?;
    let seen = format!("{state} {}", job.field("ExitCode")?);
    measured.seen += &match row.job {
        JobFate::GoesOn => format!(" · job went on, {seen}"),
        _ => format!(" · {seen}"),
    };
    ensure!(seen.starts_with(expected), "the job is {seen}, not {expected}");
    Ok(())
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}
