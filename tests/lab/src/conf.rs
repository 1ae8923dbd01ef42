//! Slurm's configuration for a lab, as text.

use std::fmt::Write;

use crate::cgroup::Version;
use crate::spec::LabSpec;
use crate::state::{NodeState, Role};

/// slurm.conf: as a site would have it, with short timers so that nothing waits without need.
pub(crate) fn slurm_conf(spec: &LabSpec, id: &str, nodes: &[NodeState]) -> String {
    let controller = nodes.iter().find(|node| node.role == Role::Controller);
    let mut settings: Vec<(String, Option<String>)> = [
        ("ClusterName", "lab"),
        ("SlurmctldHost", controller.map_or("", |node| &node.name)),
        ("SlurmUser", "slurm"),
        ("AuthType", "auth/munge"),
        ("StateSaveLocation", "/var/lib/slurm/slurmctld"),
        ("SlurmdSpoolDir", "/var/lib/slurm/slurmd"),
        ("SlurmctldPidFile", "/run/slurmctld.pid"),
        ("SlurmdPidFile", "/run/slurmd.pid"),
        ("SlurmctldLogFile", "/var/log/slurm/slurmctld.log"),
        ("SlurmdLogFile", "/var/log/slurm/slurmd.log"),
        ("SlurmctldDebug", "verbose"),
        ("SlurmdDebug", "verbose"),
        ("MailProg", "/bin/true"),
        ("MpiDefault", "none"),
        // The machine's processors are shared by all nodes: what a node claims is for the scheduler alone.
        ("SlurmdParameters", "config_overrides"),
        ("ProctrackType", "proctrack/cgroup"),
        ("TaskPlugin", "task/cgroup"),
        ("PrologFlags", "Alloc,Contain"),
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core_Memory"),
        ("DefMemPerNode", "4000"),
        ("SchedulerType", "sched/backfill"),
        (
            "SchedulerParameters",
            "batch_sched_delay=0,sched_min_interval=10000,bf_interval=2",
        ),
        ("PropagateResourceLimits", "NONE"),
        ("ReturnToService", "2"),
        ("KillWait", "10"),
        ("MinJobAge", "3600"),
        ("SlurmdTimeout", "60"),
        ("UnkillableStepTimeout", "60"),
    ]
    .map(|(key, value)| (key.to_owned(), Some(value.to_owned())))
    .into();
    if spec.gpus > 0 {
        settings.push(("GresTypes".into(), Some("gpu".into())));
    }
    for (key, value) in &spec.settings {
        match settings
            .iter_mut()
            .find(|(known, _)| known.eq_ignore_ascii_case(key))
        {
            Some(known) => known.1.clone_from(value),
            None => settings.push((key.clone(), value.clone())),
        }
    }
    let mut text = String::new();
    for (key, value) in settings {
        if let Some(value) = value {
            line(&mut text, format_args!("{key}={value}"));
        }
    }
    let gres = if spec.gpus > 0 {
        format!(" Gres=gpu:{}", spec.gpus)
    } else {
        String::new()
    };
    line(
        &mut text,
        format_args!(
            "NodeName={} CPUs={} RealMemory={}{gres} State=UNKNOWN",
            compute_nodes(id, spec.nodes),
            spec.cpus,
            spec.memory
        ),
    );
    line(
        &mut text,
        format_args!("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"),
    );
    for extra in &spec.lines {
        line(&mut text, format_args!("{extra}"));
    }
    text
}

/// The compute nodes as a host list.
pub(crate) fn compute_nodes(id: &str, count: u16) -> String {
    format!("{id}-n[1-{count}]")
}

/// gres.conf: the stand-ins, by file, so that the device cgroup constrains them.
pub(crate) fn gres_conf(gpus: u16) -> String {
    match gpus {
        0 => "AutoDetect=off\n".into(),
        1 => "AutoDetect=off\nName=gpu File=/dev/nvidia0\n".into(),
        _ => format!("AutoDetect=off\nName=gpu File=/dev/nvidia[0-{}]\n", gpus - 1),
    }
}

/// cgroup.conf for the cgroup version that this machine has.
pub(crate) fn cgroup_conf(version: Version) -> String {
    let plugin = match version {
        Version::V1 => "CgroupPlugin=cgroup/v1\n",
        // There is no systemd in a node to ask for a scope.
        Version::V2 => "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nEnableControllers=yes\n",
    };
    // Cores stay free: a node claims more of them than the machine has.
    format!("{plugin}ConstrainDevices=yes\nConstrainRAMSpace=yes\nConstrainCores=no\n")
}

/// /etc/hosts: the only name service there is.
pub(crate) fn hosts(nodes: &[NodeState]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    for node in nodes {
        line(&mut text, format_args!("{} {}", node.address, node.name));
    }
    text
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = writeln!(text, "{content}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<NodeState> {
        [
            ("ctl", Role::Controller, "10.0.0.1"),
            ("n1", Role::Compute, "10.0.0.11"),
        ]
        .map(|(short, role, address)| NodeState {
            short: short.into(),
            name: format!("abcd-{short}"),
            role,
            address: address.into(),
            init: None,
        })
        .into()
    }

    #[test]
    fn names_the_controller_and_the_nodes() {
        let text = slurm_conf(&LabSpec::default(), "abcd", &nodes());
        assert!(text.contains("SlurmctldHost=abcd-ctl\n"), "{text}");
        assert!(
            text.contains("NodeName=abcd-n[1-2] CPUs=8 RealMemory=16000 Gres=gpu:2 State=UNKNOWN\n"),
            "{text}"
        );
    }

    #[test]
    fn settings_replace_whatever_their_case_come_on_top_or_vanish() {
        let mut spec = LabSpec::default()
            .setting("killwait", "3")
            .setting("PrologTimeout", "7");
        spec.settings.push(("MailProg".into(), None));
        spec.lines.push("PartitionName=second Nodes=ALL".into());
        let text = slurm_conf(&spec, "abcd", &nodes());
        assert!(
            text.contains("KillWait=3\n") && !text.contains("KillWait=10"),
            "{text}"
        );
        assert!(text.contains("PrologTimeout=7\n"), "{text}");
        assert!(!text.contains("MailProg"), "{text}");
        assert!(text.ends_with("PartitionName=second Nodes=ALL\n"), "{text}");
    }

    #[test]
    fn no_gpus_no_gres() {
        let text = slurm_conf(
            &LabSpec {
                gpus: 0,
                ..LabSpec::default()
            },
            "abcd",
            &nodes(),
        );
        assert!(!text.contains("Gres"), "{text}");
        assert_eq!(gres_conf(1), "AutoDetect=off\nName=gpu File=/dev/nvidia0\n");
        assert_eq!(gres_conf(4), "AutoDetect=off\nName=gpu File=/dev/nvidia[0-3]\n");
    }

    #[test]
    fn hosts_lists_everybody() {
        assert_eq!(
            hosts(&nodes()),
            "127.0.0.1 localhost\n10.0.0.1 abcd-ctl\n10.0.0.11 abcd-n1\n"
        );
    }
}
