//! Commands run in a node as one of its users.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::node::Node;
use crate::process::{Join, ProcessId};
use crate::wait::wait_for;

/// A command to be run in a node: its user with that user's groups, a clean environment, a session of its own.
#[derive(Clone)]
#[must_use = "nothing runs until `output`, `run` or `spawn`"]
pub struct NodeCommand {
    node: Node,
    user: String,
    argv: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
    input: Vec<u8>,
    limit: Duration,
}

/// What a name in the node's /etc/passwd stands for.
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    home: String,
    shell: String,
}

impl NodeCommand {
    pub(crate) fn new(node: Node, user: &str, argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            node,
            user: user.into(),
            argv: argv.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            folder: None,
            input: Vec::new(),
            limit: Duration::from_secs(60),
        }
    }

    /// Adds a variable to the clean environment (HOME, USER, LOGNAME, SHELL, PATH, LANG, and what the node's /etc/environment has).
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs it in this folder, not in the user's home.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Gives it this to read on stdin (nothing otherwise).
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// How long [`Self::output`] and [`Self::run`] let it run, 60 s by default.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end and gives exit status, stdout and stderr. Past the limit it is killed: an error.
    pub fn output(self) -> Result<Output> {
        let mut child = self.start(Stdio::piped(), Stdio::piped(), Stdio::piped(), true)?;
        let start = Instant::now();
        let output = collect(&mut child, &self.input, self.limit);
        if output.is_err() {
            // Its session, so that nothing it started holds on.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
        output.with_context(|| {
            format!(
                "{self} (as {} on {}, {:.1} s)",
                self.user,
                self.node.name(),
                start.elapsed().as_secs_f64()
            )
        })
    }

    /// Runs it to its end and gives its stdout. Any other end than exit code 0 is an error that holds its stderr.
    pub fn run(self) -> Result<String> {
        let title = format!("{self} (as {} on {})", self.user, self.node.name());
        let output = self.output()?;
        if !output.status.success() {
            let said =
                [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text).trim().to_owned());
            bail!("{title} ended with {}: {}", output.status, said.join("\n").trim());
        }
        String::from_utf8(output.stdout).with_context(|| format!("{title} printed something that isn't text"))
    }

    /// Starts it in the background, stdout and stderr appended to `log`, a path in the node (made as the user root).
    ///
    /// It ends with the node at the latest.
    pub fn spawn(self, log: impl AsRef<Path>) -> Result<Background> {
        let log = log.as_ref();
        let file = self.node.inside(|| {
            fs::create_dir_all(log.parent().unwrap_or(log))?;
            File::options().create(true).append(true).open(log)
        })?;
        let file = file.with_context(|| format!("can't open {} on {}", log.display(), self.node.name()))?;
        let child = self.start(Stdio::null(), file.try_clone()?.into(), file.into(), true)?;
        let process = ProcessId::of(child.id() as i32).context("the command ended at once")?;
        let child = Arc::new(Mutex::new(child));
        self.node.remember(child.clone());
        Ok(Background {
            title: self.to_string(),
            child,
            process,
        })
    }

    /// Runs it on this process's own stdin, stdout and stderr, without a limit.
    pub fn attached(self) -> Result<ExitStatus> {
        let mut child = self.start(Stdio::inherit(), Stdio::inherit(), Stdio::inherit(), false)?;
        child.wait().with_context(|| format!("can't wait for {self}"))
    }

    fn start(&self, stdin: Stdio, stdout: Stdio, stderr: Stdio, own_session: bool) -> Result<Child> {
        let spawned = self.node.init().inside(Join::Children, || {
            let account = account(&self.user)?;
            // setsid and setpriv replace themselves, so the pid is the command's own.
            let mut chain: Vec<OsString> = Vec::new();
            if own_session {
                chain.push("/usr/bin/setsid".into());
            }
            chain.push("/usr/bin/setpriv".into());
            chain.push(format!("--reuid={}", account.uid).into());
            chain.push(format!("--regid={}", account.gid).into());
            chain.extend(["--init-groups", "--"].map(Into::into));
            chain.extend(self.argv.iter().cloned());
            let path = if account.uid == 0 {
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            } else {
                "/usr/local/bin:/usr/bin:/bin"
            };
            Command::new(&chain[0])
                .args(&chain[1..])
                .env_clear()
                .env("HOME", &account.home)
                .env("USER", &self.user)
                .env("LOGNAME", &self.user)
                .env("SHELL", &account.shell)
                .env("PATH", path)
                .env("LANG", "C.UTF-8")
                .envs(settings_of("/etc/environment"))
                .envs(self.environment.iter().map(|(name, value)| (name, value)))
                .current_dir(self.folder.as_deref().unwrap_or(Path::new(&account.home)))
                .stdin(stdin)
                .stdout(stdout)
                .stderr(stderr)
                .spawn()
                .context("can't start it")
        });
        spawned
            .and_then(|child| child)
            .with_context(|| format!("{self} (as {} on {})", self.user, self.node.name()))
    }
}

impl std::fmt::Display for NodeCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self
            .argv
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>();
        let text = words.join(" ");
        match text.char_indices().nth(200) {
            Some((end, _)) => write!(f, "`{}…`", &text[..end]),
            None => write!(f, "`{text}`"),
        }
    }
}

/// Feeds and reads a child until it has ended and its outputs are closed.
fn collect(child: &mut Child, input: &[u8], limit: Duration) -> Result<Output> {
    let (sender, receiver) = mpsc::channel();
    let mut pending = 0;
    let mut read = |number: usize, stream: Option<Box<dyn Read + Send>>| {
        let (Some(mut stream), sender) = (stream, sender.clone()) else {
            return;
        };
        pending += 1;
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A broken pipe gives what was read before.
            let _ = stream.read_to_end(&mut bytes);
            let _ = sender.send((number, bytes));
        });
    };
    read(0, child.stdout.take().map(|stream| Box::new(stream) as _));
    read(1, child.stderr.take().map(|stream| Box::new(stream) as _));
    let input = input.to_vec();
    if let Some(mut stdin) = child.stdin.take() {
        // A command that doesn't read must not stop us; one that ended early is no error.
        std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
    }
    let end = Instant::now() + limit;
    let status = wait_for(limit, "its end", || Ok(child.try_wait()?))?;
    let mut texts = [Vec::new(), Vec::new()];
    for _ in 0..pending {
        let left = end.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left) {
            Ok((number, bytes)) => texts[number] = bytes,
            Err(_) => bail!("it ended ({status}), but something it started still holds its output open"),
        }
    }
    let [stdout, stderr] = texts;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// `NAME=VALUE` lines of a file that the calling thread sees, without quotes; none if there is no such file.
pub(crate) fn settings_of(path: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pairs = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

/// Looks a user up in the /etc/passwd that the calling thread sees.
pub(crate) fn account(name: &str) -> Result<Account> {
    let text = fs::read_to_string("/etc/passwd").context("can't read /etc/passwd")?;
    let parsed = text.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        match fields.as_slice() {
            [known, _, uid, gid, _, home, shell] if *known == name => Some(Account {
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: if Path::new(home).is_dir() {
                    (*home).into()
                } else {
                    "/".into()
                },
                shell: (*shell).into(),
            }),
            _ => None,
        }
    });
    parsed.with_context(|| {
        format!("there is no user {name} in the lab (there are root, alice, bob, slurm, munge)")
    })
}

/// A command that runs in the background of a node. Dropping this doesn't end it; the node's end does.
pub struct Background {
    title: String,
    child: Arc<Mutex<Child>>,
    process: ProcessId,
}

impl Background {
    /// The process as the machine numbers it.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Its pid as the node numbers it, while it runs.
    pub fn pid_inside(&self) -> Result<i32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid))
            .with_context(|| format!("{} has ended", self.title))?;
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let pid = line
            .and_then(|line| line.split_ascii_whitespace().last())
            .and_then(|pid| pid.parse().ok());
        pid.with_context(|| format!("can't read the inner pid of {}", self.title))
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> Result<bool> {
        Ok(self.child().try_wait()?.is_none())
    }

    /// Sends it a signal (to it alone, not to what it started).
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for its end.
    pub fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        wait_for(limit, &format!("the end of {}", self.title), || {
            Ok(self.child().try_wait()?)
        })
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(Duration::from_secs(10)).map(drop)
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
