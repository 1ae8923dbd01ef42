//! What engine and job see of the node, and what is left of them.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use slurm_serve::selftest::Facts;

use super::bench::{Bench, field, until};
use super::row::Outcome;

/// What was there once the last job was over may take this long to go.
const LIMIT: Duration = Duration::from_secs(60);

/// GPUs that the engine may open, and the job's script.
pub fn devices(bench: &Bench) -> Result<Outcome> {
    let answer = bench.answer.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(match answer.as_ref() {
        None => Outcome::skip("needs the row serve"),
        Some(answer) => judge_devices(&answer.own, &answer.engine, bench.gpus),
    })
}

fn judge_devices(script: &Facts, engine: &Facts, wanted: u32) -> Outcome {
    if script.gpus.is_empty() && script.refused.is_empty() {
        return Outcome::skip("the node has no /dev/nvidiaN");
    }
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(" "),
    };
    let seen = format!(
        "script: {}; engine: {}; refused to both: {}",
        list(&script.gpus),
        list(&engine.gpus),
        list(&engine.refused)
    );
    if script.gpus != engine.gpus || script.refused != engine.refused {
        return Outcome::fail(seen);
    }
    match u32::try_from(engine.gpus.len()) == Ok(wanted) {
        true => Outcome::pass(seen),
        false => Outcome::pass(format!(
            "{seen}; the job asked for {wanted}: Slurm does not constrain devices here (ConstrainDevices)"
        )),
    }
}

/// The engine's cgroup lies in the job's, in a step of its own.
pub fn cgroup(bench: &Bench) -> Result<Outcome> {
    let answer = bench.answer.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(match answer.as_ref() {
        None => Outcome::skip("needs the row serve"),
        Some(answer) => judge_cgroups(&answer.own, &answer.engine),
    })
}

fn judge_cgroups(script: &Facts, engine: &Facts) -> Outcome {
    let mut shown = String::new();
    for (controller, path) in &script.cgroups {
        let Some((job, _)) = path.split_once("/step_") else {
            continue;
        };
        let of_engine = engine.cgroups.get(controller).map_or("", String::as_str);
        let Some((engines_job, step)) = of_engine.split_once("/step_") else {
            return Outcome::fail(format!("the script is in {path}, the engine in {of_engine:?}"));
        };
        if engines_job != job {
            return Outcome::fail(format!(
                "the script is in {path}, the engine in {of_engine}, outside its job"
            ));
        }
        let step = step.split('/').next().unwrap_or_default();
        if step.parse::<u32>().is_err() {
            return Outcome::fail(format!("the engine is in {of_engine}, no step of its own"));
        }
        let version = if controller.is_empty() { "v2" } else { "v1" };
        shown = format!("cgroup {version}: {job}, engine in its step_{step}");
    }
    match shown.is_empty() {
        true => Outcome::skip("Slurm keeps no cgroups of steps here (ProctrackType, TaskPlugin)"),
        false => Outcome::pass(shown),
    }
}

/// Where the srun client of a model's step is: the user's process, outside his job.
pub async fn srun_box(bench: &Bench) -> Result<Outcome> {
    if !bench.is_here {
        return Ok(Outcome::skip(format!("run it on {}", bench.node)));
    }
    let job = bench.serving(&[]).await?;
    let wanted = format!("--jobid={}", job.id);
    let mut clients = procfs::process::all_processes()?.flatten().filter(|process| {
        process.uid().is_ok_and(|uid| uid == bench.uid().as_raw())
            && process.cmdline().is_ok_and(|words| words.contains(&wanted))
    });
    // srun makes a shepherd of itself; either is in the same place.
    let client = clients.next().context("its srun client is not to be found")?;
    let groups = client.cgroups()?.0.into_iter().map(|group| group.pathname);
    Ok(judge_box(client.pid, &groups.collect::<Vec<_>>()))
}

fn judge_box(pid: i32, groups: &[String]) -> Outcome {
    let held = groups
        .iter()
        .find(|path| path.contains("/slurm-serve-srun-") || path.contains("_slurm-serve/"));
    match held {
        Some(path) => Outcome::pass(format!("pid {pid} is in {path}")),
        None => Outcome::fail(format!(
            "pid {pid} is held by resource limits alone; the agent's log says why (agent.srun_box)"
        )),
    }
}

/// Of all jobs so far.
pub async fn left_overs(bench: &Bench) -> Result<Outcome> {
    if !bench.is_here {
        return Ok(Outcome::skip(format!("run it on {}", bench.node)));
    }
    let ids = bench.ids();
    for id in &ids {
        bench.ended(*id, LIMIT).await?;
    }
    let mut left = Vec::new();
    let waited = until("everything of these jobs to be gone", LIMIT, async || {
        left = found(bench, &ids);
        Ok(left.is_empty().then_some(()))
    })
    .await;
    if waited.is_err() {
        return Ok(Outcome::fail(left.join(", ")));
    }
    let looked = match bench.is_root {
        true => "processes, private folders, keys",
        false => "processes of this user, private folders; keys are root's to see",
    };
    Ok(Outcome::pass(format!("nothing of {} jobs: {looked}", ids.len())))
}

fn found(bench: &Bench, ids: &[u32]) -> Vec<String> {
    let mut left = Vec::new();
    for process in procfs::process::all_processes().into_iter().flatten().flatten() {
        if process.uid().ok() != Some(bench.uid().as_raw()) {
            continue;
        }
        let of = process.environ().ok().and_then(|environment| {
            let id = environment
                .get(std::ffi::OsStr::new("SLURM_JOB_ID"))?
                .to_str()?
                .parse::<u32>()
                .ok()?;
            ids.contains(&id).then_some(id)
        });
        if let Some(id) = of {
            let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
            left.push(format!("pid {} ({name}) of job {id}", process.pid));
        }
    }
    let agent = &bench.agents.config().agent;
    let secrets = agent.run_dir.join("secrets");
    for (dir, prefix) in [
        (agent.scratch_dir.as_path(), "sserve-"),
        (Path::new("/tmp"), "sserve-"),
        (&secrets, ""),
    ] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number: String = name
                .strip_prefix(prefix)
                .unwrap_or_default()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let path = entry.path().display().to_string();
            if number.parse().is_ok_and(|id: u32| ids.contains(&id)) && !left.contains(&path) {
                left.push(path);
            }
        }
    }
    left
}

/// Drained by us?
pub async fn node_state(bench: &Bench) -> Result<Outcome> {
    let record = bench.slurm.node_record(&bench.node).await?;
    let state = field(&record, "State").unwrap_or_default();
    let before = &bench.state_before;
    let bad = |state: &str| ["DRAIN", "DOWN", "FAIL"].iter().any(|word| state.contains(word));
    ensure!(
        !bad(state) || bad(before),
        "{before} before, now {state}: {}",
        field(&record, "Reason").unwrap_or("no reason is told")
    );
    Ok(Outcome::pass(format!("{before} before, {state} now")))
}

#[cfg(test)]
mod tests {
    use super::super::row::Verdict;
    use super::*;

    fn facts(gpus: &[&str], refused: &[&str], cgroups: &[(&str, &str)]) -> Facts {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Facts {
            pid: 1,
            uid: 1000,
            gpus: owned(gpus),
            refused: owned(refused),
            cgroups: cgroups
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect(),
            child: None,
        }
    }

    #[test]
    fn the_engine_must_see_what_the_job_sees() {
        let one = facts(&["nvidia0"], &["nvidia1"], &[]);
        let both = facts(&["nvidia0", "nvidia1"], &[], &[]);
        assert_eq!(judge_devices(&one, &one, 1).verdict, Verdict::Pass);
        assert_eq!(judge_devices(&one, &both, 1).verdict, Verdict::Fail);
        let open = judge_devices(&both, &both, 1);
        assert!(
            open.verdict == Verdict::Pass && open.evidence.contains("ConstrainDevices"),
            "{open:?}"
        );
        assert_eq!(
            judge_devices(&facts(&[], &[], &[]), &one, 0).verdict,
            Verdict::Skip
        );
    }

    #[test]
    fn a_client_in_the_agents_own_unit_is_not_held() {
        let judge = |path: &str| judge_box(7, &["/".to_owned(), path.to_owned()]).verdict;
        assert_eq!(
            judge("/system.slice/slurm-serve-srun-7.0.1-ab-cd.scope"),
            Verdict::Pass
        );
        assert_eq!(judge("/gpu01_slurm-serve/7.0.1-ab-cd"), Verdict::Pass);
        assert_eq!(judge("/system.slice/slurm-serve-agent.service"), Verdict::Fail);
    }

    #[test]
    fn the_engine_must_be_in_a_step_of_the_job() {
        let script = [("", "/system.slice/slurmstepd.scope/job_5/step_batch/user/task_0")];
        let judge = |engine: &str| {
            judge_cgroups(&facts(&[], &[], &script), &facts(&[], &[], &[("", engine)])).verdict
        };
        assert_eq!(
            judge("/system.slice/slurmstepd.scope/job_5/step_0/user/task_0"),
            Verdict::Pass
        );
        assert_eq!(
            judge("/system.slice/slurmstepd.scope/job_6/step_0/user/task_0"),
            Verdict::Fail
        );
        assert_eq!(
            judge("/system.slice/slurmstepd.scope/job_5/step_extern/user/task_0"),
            Verdict::Fail
        );
        assert_eq!(judge("/user.slice"), Verdict::Fail);
        let none = facts(&[], &[], &[("", "/user.slice")]);
        assert_eq!(judge_cgroups(&none, &none).verdict, Verdict::Skip);
    }
}
