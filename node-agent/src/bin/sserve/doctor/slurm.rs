//! What follows for models from how Slurm is set up. Pure: it reads `scontrol show config` and judges.

use slurm_serve::kill_wait::Wish;
use slurm_serve::slurm_conf::SlurmConf;

use super::finding::Findings;
use super::host::Host;

/// Judges.
pub fn look(host: &Host, found: &mut Findings) {
    let Some(conf) = &host.slurm else { return };
    kill_wait(conf, &Wish::of(&host.config.agent), found);
    prolog(conf, found);
    proctrack(conf, found);
    accounting(conf, found);
}

fn kill_wait(conf: &SlurmConf, wish: &Wish, found: &mut Findings) {
    const CHECK: &str = "KillWait";
    let Some(kill_wait) = conf.kill_wait() else {
        return found.skip(CHECK, "scontrol tells none");
    };
    match wish.shortfall(kill_wait) {
        None => found.ok(
            CHECK,
            format!("{} s: enough for what the recipes ask for", kill_wait.as_secs()),
        ),
        // The line holds its remedy.
        Some(line) => found.warn(CHECK, line, ""),
    }
}

fn prolog(conf: &SlurmConf, found: &mut Findings) {
    const CHECK: &str = "PrologFlags";
    let flags = conf.get("PrologFlags").unwrap_or("none");
    let has = |flag| conf.has("PrologFlags", flag);
    let at_start = ["Alloc", "Contain", "X11", "RunInJob", "DeferBatch"]
        .into_iter()
        .any(has);
    match at_start {
        true => found.ok(CHECK, format!("{flags}: the agents of all its nodes know a job from its start")),
        false => found.warn(
            CHECK,
            format!("{flags}: a node's prolog runs at its first step, so nodes of a job that run none never hear of it"),
            "set PrologFlags=Contain (or Alloc) in slurm.conf",
        ),
    }
    if has("Serial") || has("ForceRequeueOnFail") && has("NoHold") {
        found.ok(
            CHECK,
            format!("{flags}: one prolog or epilog at a time; ours takes 0.2 s at most"),
        );
    }
}

fn proctrack(conf: &SlurmConf, found: &mut Findings) {
    const CHECK: &str = "ProctrackType";
    let kind = conf.get("ProctrackType").unwrap_or("unknown");
    match kind {
        "proctrack/cgroup" => {
            found.ok(CHECK, format!("{kind}: whatever an engine starts ends with its step"));
            if conf.get("SignalChildrenProcesses").is_some_and(|value| value.eq_ignore_ascii_case("yes")) {
                found.warn(
                    CHECK,
                    "SignalChildrenProcesses=yes: at a job's end Slurm signals the engine past its runner, and requests in flight break",
                    "set it to no in cgroup.conf, or bear it",
                );
            }
            for (key, what) in [
                ("ConstrainDevices", "an engine could open GPUs of other jobs"),
                ("ConstrainRAMSpace", "an engine may take more memory than its job asked for"),
            ] {
                if conf.get(key).is_some_and(|value| value.eq_ignore_ascii_case("no")) {
                    found.warn(CHECK, format!("{key}=no: {what}"), format!("set {key}=yes in cgroup.conf"));
                }
            }
        }
        "proctrack/linuxproc" => found.warn(
            CHECK,
            format!("{kind}: Slurm signals the engine past its runner, so requests in flight break at a job's end; a job cancelled while it waits ends a second later"),
            "set ProctrackType=proctrack/cgroup in slurm.conf",
        ),
        _ => found.warn(
            CHECK,
            format!("{kind}: an engine runs in sessions of its own, which this does not follow; if its runner is killed it stays, with its GPU memory"),
            "set ProctrackType=proctrack/cgroup in slurm.conf",
        ),
    }
}

fn accounting(conf: &SlurmConf, found: &mut Findings) {
    const CHECK: &str = "JobAcctGather";
    let kind = conf.get("JobAcctGatherType").unwrap_or("jobacct_gather/none");
    if kind.ends_with("/none") {
        return found.ok(
            CHECK,
            "none: sstat and sacct show no memory or CPU time, of models as of all steps",
        );
    }
    let kills = conf.has("JobAcctGatherParams", "OverMemoryKill");
    let shared = conf.has("JobAcctGatherParams", "UsePss") || conf.has("JobAcctGatherParams", "NoShare");
    match kills && !shared {
        true => found.warn(
            CHECK,
            format!("{kind} with OverMemoryKill: memory that an engine's processes share counts once for each, and the job may be killed for it"),
            "add UsePss to JobAcctGatherParams, or leave the limit to cgroups (ConstrainRAMSpace)",
        ),
        false => found.ok(CHECK, format!("{kind}: a model is a line of its own in sstat and sacct")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn looked(text: &str, look: fn(&SlurmConf, &mut Findings)) -> Findings {
        let mut found = Findings::default();
        look(&SlurmConf::new(text), &mut found);
        found
    }

    #[test]
    fn a_prolog_at_the_jobs_start_is_wanted() {
        for (flags, verdict) in [
            ("PrologFlags = Alloc,Contain", Verdict::Ok),
            ("PrologFlags = Contain", Verdict::Ok),
            ("PrologFlags = (null)", Verdict::Warn),
            ("PrologFlags = NoHold", Verdict::Warn),
        ] {
            assert_eq!(
                looked(flags, prolog).verdict("PrologFlags"),
                Some(verdict),
                "{flags}"
            );
        }
    }

    #[test]
    fn what_proctrack_means_is_named() {
        let good = "ProctrackType = proctrack/cgroup\nSignalChildrenProcesses = no\nConstrainDevices = yes\n";
        assert_eq!(looked(good, proctrack).count(Verdict::Warn), 0);
        let open = "ProctrackType = proctrack/cgroup\nSignalChildrenProcesses = yes\nConstrainDevices = no\n";
        let found = looked(open, proctrack);
        assert_eq!(
            (found.count(Verdict::Ok), found.count(Verdict::Warn)),
            (1, 2),
            "{found:?}"
        );
        for kind in ["linuxproc", "pgid"] {
            let found = looked(&format!("ProctrackType = proctrack/{kind}\n"), proctrack);
            assert_eq!(found.verdict("ProctrackType"), Some(Verdict::Warn));
        }
    }

    #[test]
    fn memory_that_is_counted_twice_kills_jobs() {
        let text = |more| {
            format!("JobAcctGatherType = jobacct_gather/linux\nJobAcctGatherParams = OverMemoryKill{more}\n")
        };
        let verdict = |more| looked(&text(more), accounting).verdict("JobAcctGather");
        assert_eq!(verdict(""), Some(Verdict::Warn));
        assert_eq!(verdict(",UsePss"), Some(Verdict::Ok));
    }
}
