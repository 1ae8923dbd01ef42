//! What this host's Slurm would load, and why not: the way that Slurm takes, step by step, with a word on each.
#![allow(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::plugstack::{self, StackLine};
use super::{HostPaths, SlurmVersion, elf};

/// The plugin's name for SPANK.
const OURS: &str = "serve";
/// Its file, where it can't be read to look for its name.
const OUR_FILE: &str = "spank_serve.so";
/// What the plugin takes in plugstack.conf (`spank-plugin/src/settings.rs`).
const ARGUMENTS: [&str; 3] = ["socket", "recipes", "agent_wait"];
/// Where the plugin looks for the agent unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/slurm-serve/agent.sock";

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with a risk that is named.
    Warn,
    /// Keeps the plugin from working here.
    Bad,
}

/// One thing looked at: one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was found and, where it is not `Ok`, what to do.
    pub text: String,
}

/// One line of the plugin stack and what Slurm would make of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stacked {
    /// `FILE:LINE`.
    pub place: String,
    /// `required`, else `optional`.
    pub required: bool,
    /// The file that would be loaded; as written, if there is none.
    pub plugin: PathBuf,
    /// Whether it is this project's plugin.
    pub ours: bool,
    /// What follows it in plugstack.conf.
    pub arguments: Vec<String>,
    /// What was found about it.
    pub findings: Vec<Finding>,
}

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// This host's Slurm; `None` where no command told.
    pub slurm: Option<String>,
    /// The file that Slurm begins with.
    pub plugstack: PathBuf,
    /// Where relative names are looked for.
    pub plugin_dirs: Vec<PathBuf>,
    /// Every plugin of the stack, in order.
    pub stack: Vec<Stacked>,
    /// What concerns no single line.
    pub findings: Vec<Finding>,
    /// Whether Slurm here would load our plugin.
    pub loads: bool,
}

fn ok(text: impl Into<String>) -> Finding {
    Finding {
        level: Level::Ok,
        text: text.into(),
    }
}

fn warn(text: impl Into<String>) -> Finding {
    Finding {
        level: Level::Warn,
        text: text.into(),
    }
}

fn bad(text: impl Into<String>) -> Finding {
    Finding {
        level: Level::Bad,
        text: text.into(),
    }
}

/// Follows plugstack.conf as Slurm of `version` would.
pub fn check(paths: &HostPaths, version: Option<SlurmVersion>) -> Report {
    let mut findings = Vec::new();
    if version.is_none() {
        findings.push(bad(
            "neither slurmd, srun nor scontrol tells Slurm's version here: say it with --slurm 24.11.5",
        ));
    }
    if let Some(why) = &paths.guessed {
        findings.push(warn(format!(
            "Slurm could not be asked where it looks ({why}): the usual places are taken"
        )));
    }
    let stack = match plugstack::read(&paths.plugstack) {
        Ok(lines) => lines.iter().map(|line| stacked(line, paths, version)).collect(),
        Err(error) => {
            findings.push(bad(format!(
                "{error}: Slurm refuses the whole stack for this, and fails every command"
            )));
            Vec::new()
        }
    };
    let ours: Vec<&Stacked> = stack.iter().filter(|line: &&Stacked| line.ours).collect();
    match ours.as_slice() {
        [] => findings.push(bad(format!(
            "no line of {} names {OUR_FILE}: add `include /etc/slurm/plugstack.conf.d/*.conf` and install serve.conf there",
            paths.plugstack.display()
        ))),
        [_] => {}
        [_, more @ ..] => findings.push(bad(format!(
            "the plugin is named more than once (again at {}): keep one line",
            more.iter().map(|line| line.place.as_str()).collect::<Vec<_>>().join(", ")
        ))),
    }
    let worst = |findings: &[Finding]| findings.iter().map(|finding| finding.level).max();
    let loads = ours.len() == 1
        && worst(&findings) != Some(Level::Bad)
        && ours.iter().all(|line| worst(&line.findings) != Some(Level::Bad));
    Report {
        slurm: version.map(|version| version.to_string()),
        plugstack: paths.plugstack.clone(),
        plugin_dirs: paths.plugin_dirs.clone(),
        stack,
        findings,
        loads,
    }
}

fn stacked(line: &StackLine, paths: &HostPaths, version: Option<SlurmVersion>) -> Stacked {
    let found = resolve(&line.plugin, &paths.plugin_dirs);
    let written_as_ours = Path::new(&line.plugin)
        .file_name()
        .is_some_and(|name| name == OUR_FILE);
    let ours = match &found {
        Some(file) => elf::plugin_name(file).map_or(written_as_ours, |name| name == OURS),
        None => written_as_ours,
    };
    let mut findings = Vec::new();
    match &found {
        None => findings.push(bad(missing(line, &paths.plugin_dirs))),
        Some(file) => {
            findings.push(version_finding(file, version));
            findings.extend(unreadable(file));
            if ours {
                findings.extend(libraries(file));
            }
        }
    }
    if ours {
        findings.extend(arguments(line));
        if line.required {
            findings.push(warn(
                "it is `required`: once it is stale, sbatch, srun and slurmd fail; write `optional`",
            ));
        }
    }
    Stacked {
        place: format!("{}:{}", line.file.display(), line.line),
        required: line.required,
        plugin: found.unwrap_or_else(|| line.plugin.clone().into()),
        ours,
        arguments: line.arguments.clone(),
        findings,
    }
}

impl Report {
    /// Our plugin's line, if there is one.
    pub fn ours(&self) -> Option<&Stacked> {
        self.stack.iter().find(|line| line.ours)
    }
}

impl Stacked {
    /// The value of one of the plugin's arguments; the last one counts.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let pairs = self
            .arguments
            .iter()
            .rev()
            .filter_map(|argument| argument.split_once('='));
        pairs
            .into_iter()
            .find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Whether somebody listens where the plugin will look for an agent.
    pub fn agent(&self) -> Finding {
        let socket = self.argument("socket").unwrap_or(DEFAULT_SOCKET);
        match UnixStream::connect(socket) {
            Ok(_) => ok(format!("an agent listens on {socket}")),
            Err(error) => warn(format!(
                "no agent on {socket} ({error}): as it should be on a login node; on a compute node start slurm-serve agent"
            )),
        }
    }
}

/// As Slurm does: an absolute path as it is, any other in each PluginDir.
fn resolve(plugin: &str, plugin_dirs: &[PathBuf]) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = match Path::new(plugin).is_absolute() {
        true => vec![plugin.into()],
        false => plugin_dirs.iter().map(|dir| dir.join(plugin)).collect(),
    };
    candidates.into_iter().find(|file| file.is_file())
}

fn missing(line: &StackLine, plugin_dirs: &[PathBuf]) -> String {
    let searched = plugin_dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect::<Vec<_>>()
        .join(", ");
    match Path::new(&line.plugin).is_absolute() {
        true => format!("there is no {}: install it", line.plugin),
        false => format!("there is no {} in {searched}: install it there", line.plugin),
    }
}

fn version_finding(file: &Path, version: Option<SlurmVersion>) -> Finding {
    match (elf::read_version(file), version) {
        (Err(error), _) => bad(error.to_string()),
        (Ok(stamped), None) => warn(format!(
            "made for Slurm {stamped}; this host's Slurm is not known"
        )),
        (Ok(stamped), Some(here)) if here.loads(stamped) => {
            ok(format!("made for Slurm {stamped}, this host has {here}"))
        }
        (Ok(stamped), Some(here)) => bad(format!(
            "made for Slurm {stamped}, but this host has {here}, which will not load it: `sserve plugin stamp {}`",
            file.display()
        )),
    }
}

/// sbatch loads it as the user.
fn unreadable(file: &Path) -> Option<Finding> {
    let mode = file.metadata().ok()?.permissions().mode();
    (mode & 0o004 == 0).then(|| {
        bad(format!(
            "{} can't be read by users (mode {:o}), so sbatch can't load it: chmod a+r",
            file.display(),
            mode & 0o777
        ))
    })
}

fn libraries(file: &Path) -> Vec<Finding> {
    let needed = match elf::needed(file) {
        Ok(needed) => needed,
        Err(error) => return vec![bad(error.to_string())],
    };
    let absent: Vec<Finding> = needed
        .iter()
        .filter_map(|library| {
            // SAFETY: loading runs the library's initialisers. These are the libraries that a plugin which root installed
            // names, the C runtime's; they are loaded into every Rust program anyway.
            let loaded = unsafe { libloading::Library::new(library) };
            let error = loaded.err()?;
            Some(bad(format!(
                "its library {library} can't be loaded here: {error}"
            )))
        })
        .collect();
    match absent.is_empty() {
        true => vec![ok(format!("its libraries are here: {}", needed.join(" ")))],
        false => absent,
    }
}

fn arguments(line: &StackLine) -> impl Iterator<Item = Finding> {
    let unknown = line.arguments.iter().filter(|argument| {
        !argument
            .split_once('=')
            .is_some_and(|(key, _)| ARGUMENTS.contains(&key))
    });
    unknown.map(|argument| {
        let known = ARGUMENTS.map(|key| format!("{key}=")).join(" ");
        warn(format!("its argument {argument:?} is ignored: known are {known}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    struct Host {
        folder: tempfile::TempDir,
        paths: HostPaths,
    }

    /// A host with a plugin for 22.05.8 in its PluginDir.
    fn host(stack: &str) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("p.c");
        let text = "const char plugin_name[]=\"serve\"; const char plugin_type[]=\"spank\"; \
                    const unsigned int plugin_version=0x160508;";
        fs::write(&source, text).unwrap();
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&folder.path().join(OUR_FILE), &source])
            .status();
        assert!(
            status
                .expect("a C compiler, which Rust's linker needs too")
                .success()
        );
        let plugstack = folder.path().join("plugstack.conf");
        fs::write(&plugstack, stack).unwrap();
        let paths = HostPaths {
            plugstack,
            plugin_dirs: vec!["/nonexistent".into(), folder.path().to_owned()],
            guessed: None,
        };
        Host { folder, paths }
    }

    impl Host {
        fn check(&self, version: &str) -> Report {
            check(&self.paths, Some(version.parse().unwrap()))
        }
    }

    fn texts(report: &Report, level: Level) -> Vec<String> {
        let of_lines = report.stack.iter().flat_map(|line| &line.findings);
        let all = report.findings.iter().chain(of_lines);
        all.filter(|finding| finding.level == level)
            .map(|finding| finding.text.clone())
            .collect()
    }

    #[test]
    fn a_fitting_plugin_loads() {
        let host = host("optional spank_serve.so socket=/nonexistent/agent.sock\n");
        let report = host.check("22.05.9");
        assert!(report.loads, "{report:#?}");
        assert!(report.stack[0].ours);
        assert_eq!(report.stack[0].plugin, host.folder.path().join(OUR_FILE));
        let ours = report.ours().expect("ours");
        assert_eq!(ours.argument("socket"), Some("/nonexistent/agent.sock"));
        assert_eq!(
            (ours.agent().level, ours.argument("recipes")),
            (Level::Warn, None)
        );
    }

    #[test]
    fn a_stale_one_says_which_command_helps() {
        let report = host("optional spank_serve.so\n").check("24.11.5");
        assert!(!report.loads);
        let told = texts(&report, Level::Bad);
        assert!(
            told[0].contains("made for Slurm 22.05.8") && told[0].contains("sserve plugin stamp"),
            "{told:?}"
        );
    }

    #[test]
    fn required_and_unknown_arguments_are_warned_of() {
        let report = host("required spank_serve.so sokcet=/x\n").check("22.05.8");
        assert!(report.loads);
        let told = texts(&report, Level::Warn).join("\n");
        assert!(
            told.contains("sokcet=/x") && told.contains("write `optional`"),
            "{told}"
        );
    }

    #[test]
    fn absent_named_twice_or_missing_are_told_apart() {
        assert!(texts(&host("").check("22.05.8"), Level::Bad)[0].contains("no line of"));
        let twice = host("optional spank_serve.so\noptional spank_serve.so\n").check("22.05.8");
        assert!(!twice.loads && texts(&twice, Level::Bad)[0].contains("more than once"));
        let other = host("optional other.so\noptional /none/spank_serve.so\n").check("22.05.8");
        let told = texts(&other, Level::Bad).join("\n");
        assert!(
            !other.loads && told.contains("there is no other.so in /nonexistent"),
            "{told}"
        );
        assert!(other.stack[1].ours);
    }

    #[test]
    fn a_file_that_users_cannot_read_is_told() {
        let host = host("optional spank_serve.so\n");
        let file = host.folder.path().join(OUR_FILE);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(texts(&host.check("22.05.8"), Level::Bad)[0].contains("can't be read by users"));
    }
}
