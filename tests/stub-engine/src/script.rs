//! What a test scripts: `STUB_*` in the environment for the whole life, [`Live`] for what can change while it runs.
//!
//! An unknown or malformed `STUB_*` ends the stub with code 64 and one line, so that a typo in a test can't pass for
//! a stub that behaves.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Exit code of a wrong script (EX_USAGE): one that vLLM never has.
pub const BAD_SCRIPT: i32 = 64;

/// Every variable and its meaning; `--help` prints this table and anything not in it is refused.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "STUB_LOAD_MS",
        "milliseconds of loading before ready, spread over its stages (default 0)",
    ),
    (
        "STUB_LOAD_UNTIL",
        "path: loading goes on until this file exists, at most 10 minutes",
    ),
    (
        "STUB_FAIL",
        "a start failure, see below: prints vLLM's lines and exits with vLLM's code",
    ),
    (
        "STUB_DIE_AT",
        "config|weights|compile|graphs: ends at the end of that stage, with STUB_EXIT_CODE (default 1)",
    ),
    (
        "STUB_EXIT_AFTER_READY_MS",
        "ends that long after ready, with STUB_EXIT_CODE (default 0)",
    ),
    (
        "STUB_EXIT_CODE",
        "0..255, or a signal by name (SIGKILL, SIGILL, SIGSEGV): dies of it, nothing tidied",
    ),
    (
        "STUB_HANG_AFTER_READY_MS",
        "sets hang=STUB_HANG (default all) that long after ready",
    ),
    ("STUB_IGNORE_TERM", "1: deaf to SIGTERM and SIGINT"),
    (
        "STUB_HANG_ON_TERM",
        "1: on SIGTERM with a stream open, freezes until the client goes (at most 10 minutes)",
    ),
    (
        "STUB_CHILD",
        "1: a child process VLLM::EngineCore in the same session, that outlives a SIGKILL of this one",
    ),
    (
        "STUB_ENGINE_DEATH_MS",
        "from the child's death to the exit with code 0 (default 4800, as measured)",
    ),
    (
        "STUB_LEAVE_BEHIND",
        "1: makes $TMPDIR/vllm_dist_*, /dev/shm/psm_* and sem.mp-*; a clean exit leaves the first",
    ),
    (
        "STUB_SHM_MIB",
        "size of the psm_ segment (default 16; pages are not touched)",
    ),
    (
        "STUB_HANG",
        "none|all|engine: all = alive, answers nothing; engine = /health answers, no token comes",
    ),
    ("STUB_HEALTH", "status of /health instead of 200"),
    (
        "STUB_REQUEST_STATUS",
        "every inference request is answered with this status and vLLM's error shape",
    ),
    ("STUB_TTFT_MS", "milliseconds before the first token (default 0)"),
    ("STUB_TOKEN_MS", "milliseconds between tokens (default 0)"),
    (
        "STUB_TOKENS",
        "tokens of an answer whose request sets no max_tokens (default 16)",
    ),
    (
        "STUB_STAMP",
        "1: each token of a stream says in stub_ns when it was made, in nanoseconds since the epoch",
    ),
    (
        "STUB_BREAK_AFTER",
        "cuts the connection after that many tokens of a stream",
    ),
    ("STUB_HOLD_BODY", "1: request bodies are not read until lifted"),
    (
        "STUB_MODEL_ID",
        "an id for /v1/models instead of the served names: another server's answer",
    ),
];

/// How the process ends when a script ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `exit(code)`, after tidying up what vLLM tidies up.
    Code(u8),
    /// Death by a signal: nothing is tidied up and the child stays.
    Signal(Signal),
}

impl std::str::FromStr for Ending {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse()
            .map(Self::Code)
            .or_else(|_| text.parse().map(Self::Signal).map_err(|_| ()))
    }
}

/// Stages of loading, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The model's configuration is read.
    Config,
    /// Weights are loaded.
    Weights,
    /// torch.compile.
    Compile,
    /// CUDA graphs are captured.
    Graphs,
}

impl std::str::FromStr for Stage {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "config" => Self::Config,
            "weights" => Self::Weights,
            "compile" => Self::Compile,
            "graphs" => Self::Graphs,
            _ => return Err(()),
        })
    }
}

/// What hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hang {
    /// Nothing.
    #[default]
    None,
    /// The engine: HTTP answers, tokens don't come.
    Engine,
    /// Everything: connections are accepted and no request is answered. `/_stub/` still is.
    All,
}

/// What `POST /_stub/set` may change at any time; the same keys, as `STUB_*`, set where it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// What hangs.
    pub hang: Hang,
    /// `/health` answers this instead of 200.
    pub health: Option<u16>,
    /// Inference is answered with this status.
    pub request_status: Option<u16>,
    /// Milliseconds before the first token.
    pub ttft_ms: u64,
    /// Milliseconds between tokens.
    pub token_ms: u64,
    /// Tokens of an answer without `max_tokens`.
    pub tokens: u64,
    /// The connection is cut after that many tokens of a stream.
    pub break_after: Option<u64>,
    /// Request bodies are left unread.
    pub hold_body: bool,
    /// Another id in `/v1/models`.
    pub model_id: Option<String>,
}

/// The script of one life.
#[derive(Clone, Debug)]
pub struct Script {
    /// How long loading takes.
    pub load: Duration,
    /// Loading ends once this exists.
    pub load_until: Option<PathBuf>,
    /// A start failure.
    pub fail: Option<Failure>,
    /// Ends at the end of this stage, so.
    pub die_at: Option<(Stage, Ending)>,
    /// Ends so long after ready, so.
    pub exit_after_ready: Option<(Duration, Ending)>,
    /// Hangs so long after ready.
    pub hang_after_ready: Option<(Duration, Hang)>,
    /// Deaf to SIGTERM and SIGINT.
    pub ignore_term: bool,
    /// Freezes on SIGTERM while a stream is open.
    pub hang_on_term: bool,
    /// Starts an engine process.
    pub child: bool,
    /// From the engine's death to the exit.
    pub engine_death: Duration,
    /// Makes vLLM's temporary files, with a segment of this many bytes.
    pub leave_behind: Option<u64>,
    /// Tokens of a stream tell when they were made.
    pub stamp: bool,
    /// Where the changeable part starts.
    pub live: Live,
}

impl Script {
    /// Reads the `STUB_*` among `vars`; the error is one line naming the variable.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let vars: Vec<_> = vars.into_iter().filter(|(k, _)| k.starts_with("STUB_")).collect();
        if let Some((name, _)) = vars.iter().find(|(k, _)| !VARIABLES.iter().any(|(v, _)| v == k)) {
            return Err(format!("unknown variable {name}; stub-engine --help lists them"));
        }
        let read = Reader(&vars);
        let ending = read.parsed::<Ending>("STUB_EXIT_CODE", "a code 0..255 or a signal such as SIGKILL")?;
        let hang = read.hang()?;
        let hang_after = read
            .number("STUB_HANG_AFTER_READY_MS")?
            .map(Duration::from_millis);
        let status = |name| read.parsed::<u16>(name, "an HTTP status");
        let leave_behind = read.switch("STUB_LEAVE_BEHIND")?;
        let shm = read.number("STUB_SHM_MIB")?.unwrap_or(16) << 20;
        Ok(Self {
            load: Duration::from_millis(read.number("STUB_LOAD_MS")?.unwrap_or(0)),
            load_until: read.text("STUB_LOAD_UNTIL").map(PathBuf::from),
            fail: read.parsed("STUB_FAIL", &Failure::names())?,
            die_at: read
                .parsed("STUB_DIE_AT", "config, weights, compile or graphs")?
                .map(|stage| (stage, ending.unwrap_or(Ending::Code(1)))),
            exit_after_ready: read
                .number("STUB_EXIT_AFTER_READY_MS")?
                .map(|ms| (Duration::from_millis(ms), ending.unwrap_or(Ending::Code(0)))),
            hang_after_ready: hang_after.map(|after| (after, hang.unwrap_or(Hang::All))),
            ignore_term: read.switch("STUB_IGNORE_TERM")?,
            hang_on_term: read.switch("STUB_HANG_ON_TERM")?,
            child: read.switch("STUB_CHILD")?,
            engine_death: Duration::from_millis(read.number("STUB_ENGINE_DEATH_MS")?.unwrap_or(4800)),
            leave_behind: leave_behind.then_some(shm),
            stamp: read.switch("STUB_STAMP")?,
            live: Live {
                hang: if hang_after.is_some() {
                    Hang::None
                } else {
                    hang.unwrap_or_default()
                },
                health: status("STUB_HEALTH")?,
                request_status: status("STUB_REQUEST_STATUS")?,
                ttft_ms: read.number("STUB_TTFT_MS")?.unwrap_or(0),
                token_ms: read.number("STUB_TOKEN_MS")?.unwrap_or(0),
                tokens: read.number("STUB_TOKENS")?.unwrap_or(16),
                break_after: read.number("STUB_BREAK_AFTER")?,
                hold_body: read.switch("STUB_HOLD_BODY")?,
                model_id: read.text("STUB_MODEL_ID").map(str::to_owned),
            },
        })
    }
}

/// Typed look-ups whose errors name the variable.
struct Reader<'a>(&'a [(String, String)]);

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, v)| k == name && !v.is_empty())
            .map(|(_, v)| v.as_str())
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str, wanted: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|_| format!("{name}={text}: not {wanted}"))
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        self.parsed(name, "a whole number")
    }

    fn switch(&self, name: &str) -> Result<bool, String> {
        match self.text(name) {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(text) => Err(format!("{name}={text}: not 0 or 1")),
        }
    }

    fn hang(&self) -> Result<Option<Hang>, String> {
        let Some(text) = self.text("STUB_HANG") else {
            return Ok(None);
        };
        serde_json::from_value(text.into())
            .map(Some)
            .map_err(|_| format!("STUB_HANG={text}: not none, all or engine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(vars: &[(&str, &str)]) -> Result<Script, String> {
        Script::from_vars(vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn an_empty_script_is_a_healthy_engine() {
        let s = script(&[("PATH", "/bin")]).unwrap();
        assert!(s.load.is_zero() && s.fail.is_none() && !s.child && s.live.hang == Hang::None);
    }

    #[test]
    fn a_hang_for_later_does_not_hang_now() {
        let s = script(&[("STUB_HANG_AFTER_READY_MS", "5"), ("STUB_HANG", "engine")]).unwrap();
        assert_eq!(s.live.hang, Hang::None);
        assert_eq!(s.hang_after_ready, Some((Duration::from_millis(5), Hang::Engine)));
    }

    #[test]
    fn endings_are_codes_or_signals() {
        assert_eq!("7".parse(), Ok(Ending::Code(7)));
        assert_eq!("SIGKILL".parse(), Ok(Ending::Signal(Signal::SIGKILL)));
        assert_eq!("256".parse::<Ending>(), Err(()));
    }

    #[test]
    fn a_typo_is_refused_by_name() {
        assert!(
            script(&[("STUB_LAOD_MS", "5")])
                .unwrap_err()
                .contains("STUB_LAOD_MS")
        );
        assert!(
            script(&[("STUB_LOAD_MS", "5s")])
                .unwrap_err()
                .contains("STUB_LOAD_MS=5s")
        );
        assert!(
            script(&[("STUB_FAIL", "x")])
                .unwrap_err()
                .contains("missing-weights")
        );
    }
}
