//! The lab itself, for real: needs root and debootstrap (the first run fills the cache, a minute and a half).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serve_lab::{Lab, LabSpec, LabState, On, ProcessId, wait_for};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn srun_on_two_nodes_then_nothing_is_left() -> Result<()> {
    let lab = Lab::up(LabSpec::default())?;
    let traces = Traces::of(lab.id(), lab.nodes().iter().map(|node| node.init()))?;

    let script = "hostname; for gpu in 0 1; do cat /dev/nvidia$gpu 2>&1; done; true";
    let said = lab
        .login()
        .command("alice", ["srun", "-N2", "-l", "--gres=gpu:1", "sh", "-c", script])
        .run()?;
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    // Allowed, but nobody stands behind it; and refused by the job's device cgroup.
    let of_task = |task: u8| {
        [
            format!("{task}: cat: /dev/nvidia0: No such device or address"),
            format!("{task}: cat: /dev/nvidia1: Operation not permitted"),
            format!("{task}: {}-n{}", lab.id(), task + 1),
        ]
    };
    let mut expected = [of_task(0), of_task(1)].concat();
    expected.sort_unstable();
    assert_eq!(lines, expected);

    assert!(
        !traces.left()?.is_empty(),
        "the search for traces finds none of a running lab"
    );
    lab.down()?;
    assert_eq!(traces.left()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn commands_run_as_the_user_with_groups_and_a_clean_environment() -> Result<()> {
    let lab = Lab::up(LabSpec {
        nodes: 1,
        ..LabSpec::default()
    })?;
    let login = lab.login();
    assert_eq!(login.command("alice", ["id", "-nG"]).run()?, "alice models\n");
    assert_eq!(login.command("bob", ["id", "-nG"]).run()?, "bob\n");
    let environment = login.command("bob", ["env"]).env("EXTRA", "1").run()?;
    let names: BTreeSet<_> = environment
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    // The shell tools in between add none of their own.
    assert_eq!(
        names,
        ["EXTRA", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"].into()
    );
    assert_eq!(login.command("bob", ["pwd"]).run()?, "/home/bob\n");
    assert_eq!(login.command("bob", ["cat"]).input("heard").run()?, "heard");
    let error = login
        .command("bob", ["sh", "-c", "echo why >&2; exit 3"])
        .run()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("exit status: 3") && error.contains("why"),
        "{error}"
    );
    let error = login
        .command("bob", ["sleep", "60"])
        .limit(Duration::from_millis(50))
        .run()
        .unwrap_err();
    assert!(format!("{error:#}").contains("gave up after"), "{error:#}");
    let error = login.command("carol", ["true"]).run().unwrap_err();
    assert!(
        format!("{error:#}").contains("there is no user carol"),
        "{error:#}"
    );
    // /home is one, whatever the node.
    login.command("alice", ["touch", "here"]).run()?;
    lab.node("n1")?.command("alice", ["rm", "here"]).run()?;
    lab.down()
}

#[test]
fn files_are_in_place_before_slurmd_starts() -> Result<()> {
    let spec = LabSpec {
        nodes: 2,
        ..LabSpec::default()
    }
    .file(
        On::Node("n2".into()),
        "/etc/slurm-serve/here",
        "n2 alone\n",
        0o640,
    )
    .bind(On::Compute, "/usr/bin/lab-of-the-host", env!("CARGO_BIN_EXE_lab"))
    .prepare(|node| {
        let slurmd = node.command("root", ["pgrep", "-x", "slurmd"]).output()?;
        ensure!(!slurmd.status.success(), "slurmd runs already on {}", node.name());
        node.install_file("/etc/prepared", node.short(), 0o644)
    })
    .setting("KillWait", "3");
    let lab = Lab::up(spec)?;
    assert_eq!(lab.node("n2")?.read_text("/etc/slurm-serve/here")?, "n2 alone\n");
    assert!(lab.node("n1")?.read("/etc/slurm-serve/here").is_err());
    assert_eq!(lab.node("n1")?.read_text("/etc/prepared")?, "n1");
    assert!(
        lab.node("n1")?
            .command("bob", ["lab-of-the-host", "--version"])
            .run()?
            .starts_with("serve-lab ")
    );
    let shown = lab
        .login()
        .command("alice", ["scontrol", "show", "config"])
        .run()?;
    let kill_wait = shown
        .lines()
        .find(|line| line.starts_with("KillWait"))
        .context("no KillWait")?;
    assert!(kill_wait.contains("3 sec"), "{kill_wait}");
    lab.down()
}

#[test]
fn a_snapshot_shows_what_a_job_left() -> Result<()> {
    let lab = Lab::up(LabSpec {
        nodes: 1,
        ..LabSpec::default()
    })?;
    let node = lab.node("n1")?;
    let before = node.snapshot()?;
    lab.login().command("alice", ["srun", "-n1", "true"]).run()?;
    node.wait_until_clean(&before, SOON)?;

    let batch = "touch /tmp/mess /dev/shm/mess; sleep 600";
    let job = lab
        .login()
        .command("alice", ["sbatch", "--parsable", "--wrap", batch])
        .run()?;
    wait_for(SOON, "the job's mess", || {
        Ok(node.read("/dev/shm/mess").is_ok().then_some(()))
    })?;
    let during = before.difference(&node.snapshot()?).to_string();
    for trace in [
        "file     /tmp/mess",
        "file     /dev/shm/mess",
        "uid 2001 sleep 600",
        "cgroup   ",
        "slurmstepd",
    ] {
        assert!(during.contains(trace), "no {trace:?} in\n{during}");
    }
    lab.login().command("alice", ["scancel", job.trim()]).run()?;
    let error = node
        .wait_until_clean(&before, Duration::from_secs(5))
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("+ file     /tmp/mess\n"),
        "{error:#}"
    );
    node.command("alice", ["rm", "/tmp/mess", "/dev/shm/mess"])
        .run()?;
    node.wait_until_clean(&before, SOON)?;
    lab.down()
}

#[test]
fn nodes_can_be_cut_off_hung_and_killed() -> Result<()> {
    let lab = Lab::up(LabSpec {
        nodes: 2,
        ..LabSpec::default()
    })?;
    let (one, two) = (lab.node("n1")?, lab.node("n2")?);
    let reaches = |port: u16| -> Result<bool> {
        let address = format!("{}:{port}", one.address()).parse()?;
        two.inside(|| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok())
    };
    assert!(reaches(6818)?);
    one.cut()?;
    assert!(!reaches(6818)?);
    one.restore()?;
    wait_for(SOON, "the cable to work again", || {
        Ok(reaches(6818)?.then_some(()))
    })?;

    let sleeper = one
        .command("root", ["sleep", "600"])
        .spawn("/var/log/sleeper.log")?;
    let state = || -> Result<char> {
        let status = fs::read_to_string(format!("/proc/{}/status", sleeper.process().pid))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .context("no state")?;
        line.trim().chars().next().context("an empty state")
    };
    one.freeze()?;
    wait_for(
        SOON,
        "the sleeper to stop",
        || Ok((state()? == 'T').then_some(())),
    )?;
    one.thaw()?;
    wait_for(SOON, "the sleeper to go on", || {
        Ok((state()? == 'S').then_some(()))
    })?;
    assert!(sleeper.is_running()?);
    assert_eq!(
        sleeper.pid_inside()?.to_string(),
        one.command("root", ["pgrep", "-x", "-n", "sleep"]).run()?.trim()
    );

    one.kill()?;
    assert!(!sleeper.process().exists());
    assert!(one.command("root", ["true"]).run().is_err());
    two.restart_slurmd()?;
    lab.login()
        .command("bob", ["srun", "-w", two.name(), "true"])
        .run()?;
    lab.down()
}

#[test]
fn a_lab_whose_starter_is_gone_is_taken_down() -> Result<()> {
    let cli = Cli::new("orphan")?;
    // `lab up` keeps its lab; without that mark it is an orphan as soon as the command has ended.
    let (id, traces) = cli.up()?;
    let file = cli.base.join(&id).join("lab.json");
    fs::write(
        &file,
        fs::read_to_string(&file)?.replace("\"keep\": true", "\"keep\": false"),
    )?;
    let (other, other_traces) = cli.up()?;
    assert_eq!(traces.left()?, Vec::<String>::new());

    // One that was to be kept, but whose start was cut short.
    let file = cli.base.join(&other).join("lab.json");
    fs::write(
        &file,
        fs::read_to_string(&file)?.replace("\"complete\": true", "\"complete\": false"),
    )?;
    let (third, third_traces) = cli.up()?;
    assert_eq!(other_traces.left()?, Vec::<String>::new());
    let (other, other_traces) = (third, third_traces);

    // Neither its state file nor anything written down is needed.
    fs::remove_dir_all(cli.base.join(&other))?;
    cli.run(&["down", "--all"])?;
    assert_eq!(other_traces.left()?, Vec::<String>::new());
    // Twice is once.
    cli.run(&["down", "--all"])?;
    cli.run(&["down", &other])?;
    ensure!(!cli.base.exists(), "{} is left", cli.base.display());
    Ok(())
}

#[test]
fn the_command_line_enters_a_lab() -> Result<()> {
    let cli = Cli::new("verbs")?;
    let (id, traces) = cli.up()?;
    assert!(
        cli.run(&["list"])?
            .contains(&format!("{id}  Slurm 24.11  up, kept  ctl login n1"))
    );
    let who = cli.run(&[
        "exec",
        &id,
        "n1",
        "--user",
        "bob",
        "--",
        "sh",
        "-c",
        "whoami; hostname",
    ])?;
    assert_eq!(who, format!("bob\n{id}-n1\n"));
    let piped = cli.piped("whoami; hostname\n", &["shell", "--user", "bob", &id, "n1"])?;
    assert_eq!(
        piped,
        format!("bob\n{id}-n1\n"),
        "commands from a pipe, and then the end"
    );
    let code = cli
        .output(&["exec", &id, "n1", "--", "sh", "-c", "exit 7"])?
        .status
        .code();
    assert_eq!(code, Some(7));
    let refused = cli.output(&["exec", &id, "n9", "--", "true"])?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("has no node n9; it has ctl, login, n1"), "{text}");
    cli.run(&["down"])?;
    assert_eq!(traces.left()?, Vec::<String>::new());
    Ok(())
}

/// The `lab` command on a state folder of its own, so that `--all` means this test's labs alone.
struct Cli {
    base: PathBuf,
}

impl Cli {
    fn new(name: &str) -> Result<Self> {
        let base = std::env::temp_dir().join(format!("serve-lab-{name}-{}", std::process::id()));
        fs::create_dir(&base)?;
        Ok(Self { base })
    }

    fn output(&self, arguments: &[&str]) -> Result<Output> {
        Ok(Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(arguments)
            .env("SLURM_SERVE_LAB", &self.base)
            .output()?)
    }

    /// The same with something on its stdin.
    fn piped(&self, stdin: &str, arguments: &[&str]) -> Result<String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(arguments)
            .env("SLURM_SERVE_LAB", &self.base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut pipe = child.stdin.take().context("a pipe")?;
        pipe.write_all(stdin.as_bytes())?;
        drop(pipe);
        Ok(String::from_utf8(child.wait_with_output()?.stdout)?)
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.success(),
            "lab {arguments:?} ended with {}: {errors}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn up(&self) -> Result<(String, Traces)> {
        let id = self.run(&["up", "--nodes", "1"])?.trim().to_owned();
        let state: LabState = serde_json::from_slice(&fs::read(self.base.join(&id).join("lab.json"))?)?;
        let inits = state.nodes.iter().filter_map(|node| node.init).chain(state.hub);
        let traces = Traces::of(&id, inits)?;
        Ok((id, traces))
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        // A failed test must leave nothing either; after a passed one there is nothing to do.
        let _ = self.run(&["down", "--all"]);
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// All by which a lab could be found on this machine.
struct Traces {
    id: String,
    spaces: BTreeSet<PathBuf>,
    /// Open, because the kernel gives the number of a namespace that is gone to the next one.
    _held: Vec<File>,
    interfaces: BTreeSet<String>,
}

impl Traces {
    fn of(id: &str, inits: impl Iterator<Item = ProcessId>) -> Result<Self> {
        let (mut spaces, mut held) = (BTreeSet::new(), Vec::new());
        for init in inits {
            for kind in ["net", "uts", "ipc", "pid", "mnt"] {
                let path = format!("/proc/{}/ns/{kind}", init.pid);
                spaces.insert(fs::read_link(&path)?);
                held.push(File::open(&path)?);
            }
        }
        Ok(Self {
            id: id.into(),
            spaces,
            _held: held,
            interfaces: interfaces()?,
        })
    }

    /// What is left: processes in its namespaces, mounts, cgroups, state; interfaces that came meanwhile.
    fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            // A dead one whose parent is gone waits for the machine's init to take notice; it holds nothing.
            let status = fs::read_to_string(path.join("status")).unwrap_or_default();
            if status.contains("\nState:\tZ") {
                continue;
            }
            for space in fs::read_dir(path.join("ns")).into_iter().flatten().flatten() {
                if fs::read_link(space.path()).is_ok_and(|space| self.spaces.contains(&space)) {
                    left.push(format!("process {name} in a namespace of the lab"));
                }
            }
            let mounts = fs::read_to_string(path.join("mountinfo")).unwrap_or_default();
            if mounts.contains(&format!("/{}/root", self.id)) {
                left.push(format!("process {name} sees a mount of the lab"));
            }
        }
        find(Path::new("/sys/fs/cgroup"), &format!("{}-", self.id), &mut left);
        for base in [PathBuf::from("/run/slurm-serve-lab"), std::env::temp_dir()] {
            let folder = base.join(&self.id);
            if folder.exists() {
                left.push(folder.display().to_string());
            }
        }
        left.extend(
            interfaces()?
                .difference(&self.interfaces)
                .map(|name| format!("interface {name}")),
        );
        Ok(left)
    }
}

fn interfaces() -> Result<BTreeSet<String>> {
    fs::read_dir("/sys/class/net")?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn find(folder: &Path, part: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().contains(part) {
                found.push(entry.path().display().to_string());
            }
            find(&entry.path(), part, found);
        }
    }
}
