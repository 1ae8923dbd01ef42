//! What makes a lab one of the configurations.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serve_e2e::compiled;
use serve_lab::{Cache, LabSpec, Node, On, Release, Role, ensure_root};

/// As Slurm comes: a prolog runs on a node when the first step reaches it.
pub fn no_prolog_flags(mut spec: LabSpec) -> Result<LabSpec> {
    spec.settings.push(("PrologFlags".into(), None));
    Ok(spec)
}

/// No cgroups: Slurm finds a step's processes in /proc, signals each of them, and no task that still waits in task_init.
pub fn linuxproc(spec: LabSpec) -> Result<LabSpec> {
    Ok(spec
        .setting("ProctrackType", "proctrack/linuxproc")
        .setting("TaskPlugin", "task/none")
        .setting("PrologFlags", "Alloc"))
}

/// Hooks of a step run in a child that shares slurmstepd's memory.
pub fn contain_spank(spec: LabSpec) -> Result<LabSpec> {
    Ok(spec.setting("SlurmdParameters", "config_overrides,contain_spank"))
}

/// A /tmp and /dev/shm for each job.
pub fn job_container(spec: LabSpec) -> Result<LabSpec> {
    on_one_cpu()?;
    let spec = match spec.release {
        Release::V26_05 => spec.setting("NamespaceType", "namespace/tmpfs"),
        _ => spec.setting("JobContainerType", "job_container/tmpfs"),
    };
    let conf = "AutoBasePath=true\nBasePath=/var/spool/containers\n";
    Ok(spec
        .file(On::All, "/etc/slurm/job_container.conf", conf, 0o644)
        .prepare(|node| node.install_file("/tmp/of-the-node", "", 0o644)))
}

/// Another plugin that enters a mount namespace; `order` places it in plugstack.conf.d.
pub fn foreign(spec: LabSpec, order: &str) -> Result<LabSpec> {
    let library = "/usr/lib/foreign.so";
    let built = plugin(spec.release)?;
    Ok(spec.file(On::Compute, library, built, 0o755).file(
        On::Compute,
        format!("/etc/slurm/plugstack.conf.d/{order}.conf"),
        format!("required {library}\n"),
        0o644,
    ))
}

/// The C plugin, built with the release's own header (which gives it that release's number).
fn plugin(release: Release) -> Result<Vec<u8>> {
    let headers = ensure_root(&Cache::locate()?, release)?.join("usr/include");
    let headers = headers.to_str().context("a path that is text")?;
    compiled("tests/configurations/foreign.c", &["-I", headers])
}

/// slurm.conf and its company where a site keeps them, known by SLURM_CONF alone.
pub fn elsewhere(spec: LabSpec) -> Result<LabSpec> {
    Ok(spec.prepare(|node| {
        let script = "mkdir -p /opt && mv /etc/slurm /opt/site && sed -i s,/etc/slurm/,/opt/site/, /opt/site/plugstack.conf";
        node.command("root", ["sh", "-c", script]).run()?;
        node.install_file("/etc/environment", "SLURM_CONF=/opt/site/slurm.conf\n", 0o644)
    }))
}

/// Compute nodes have no file of Slurm's: slurmd fetches them from slurmctld. So does plugstack.conf come, without what it includes.
pub fn configless(spec: LabSpec) -> Result<LabSpec> {
    let spec = spec.setting("SlurmctldParameters", "enable_configless");
    Ok(spec.prepare(|node| match node.role() {
        Role::Compute => {
            node.command("root", ["rm", "-r", "/etc/slurm"]).run()?;
            let controller = node.name().replace(node.short(), "ctl");
            let options = format!("SLURMD_OPTIONS=\"--conf-server {controller}:6817\"\n");
            node.install_file("/etc/default/slurmd", options, 0o644)
        }
        Role::Controller => write_plugstack(node),
        Role::Login => Ok(()),
    }))
}

/// The plugin's own line in plugstack.conf itself.
fn write_plugstack(node: &Node) -> Result<()> {
    node.install_file(
        "/etc/slurm/plugstack.conf",
        "optional /usr/lib/slurm-serve/spank_serve.so\n",
        0o644,
    )
}

/// Keeps this process, and with it the lab that it is about to start, on one CPU. Slurm holds a job's mount namespace by a bind mount, which
/// the kernel allows only for one that is younger than the caller's own; since 6.18 it takes their ages from a counter of each CPU, and
/// refuses some ("ns base mount failed: Invalid argument").
fn on_one_cpu() -> Result<()> {
    let mut first = CpuSet::new();
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpu = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    first.set(cpu.context("no CPU is allowed to this process")?)?;
    sched_setaffinity(Pid::from_raw(0), &first).context("can't stay on one CPU")
}
