//! Why an engine failed, from what it left in its log.
//!
//! This explains and never decides: that the engine has ended, or will not be ready, is known before by facts. What cannot be
//! told is told as such, with the last error in the log's own words.

use crate::logline::{self, Level, cut};
use crate::recipe::Recipe;
use crate::signs::{SIGNALS, SIGNS, Sign};
use crate::version::version_at_least;

/// The longest part of a log line that goes into an explanation, in characters.
const MAX_DETAIL: usize = 240;

/// What kind of failure it was; each has another remedy. The subset of the contract's `Cause` that a log can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CauseKind {
    /// Not enough free memory on a GPU.
    GpuMemory,
    /// Fewer GPUs than the engine was told to use.
    TooFewGpus,
    /// The weights are missing, unreadable or truncated.
    WeightsMissing,
    /// A model hub was needed and is gated or out of reach.
    HubUnreachable,
    /// A tokenizer or vocabulary file is missing.
    TokenizerMissing,
    /// The engine refused one of its arguments.
    UnknownArgument,
    /// The engine's program, or a part of it, is not on this node.
    EngineNotFound,
    /// The engine is older than the model needs.
    EngineTooOld,
    /// The engine ended by itself.
    EngineDied,
    /// Killed by the job's memory limit, or the node's memory did not suffice.
    OutOfMemory,
}

/// A failure in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// What kind it was.
    pub cause: CauseKind,
    /// One line: what happened, to what.
    pub text: String,
    /// One line: what to do about it.
    pub hint: String,
}

/// Explains an engine's end that nobody asked for, or a deadline that passed.
///
/// `log_tail`: the last lines of its log, oldest first; the cause of a failed start can stand 300 lines before the end.
/// `wait_status`: as wait(2) gives it, if the engine's process has ended; `None` also if it could not be started (then the
/// caller knows better: [`Explained::not_startable`]).
pub fn explain(log_tail: &[String], wait_status: Option<i32>, recipe: &Recipe) -> Explained {
    let lines: Vec<_> = log_tail.iter().map(|line| logline::read(line)).collect();
    let exit_code = wait_status.filter(|s| s & 0x7f == 0).map(|s| (s >> 8) & 0xff);
    let signal = wait_status.map(|s| s & 0x7f).filter(|s| *s != 0);

    if let Some(found) = too_old(&lines, recipe) {
        return found;
    }
    // What is said in passing counts for nothing: engines warn of errors that don't stop them.
    let serious: Vec<&str> = lines
        .iter()
        .filter(|line| matches!(line.level, Level::Error | Level::None) && !inside_traceback(&line.text))
        .map(|line| line.text.trim())
        .collect();
    for sign in SIGNS {
        if let Some(line) = serious.iter().find(|line| shows(sign, line, recipe)) {
            return said(sign, line, recipe);
        }
    }
    if let Some(code @ (126 | 127)) = exit_code {
        return Explained::not_startable(recipe, &format!("exit code {code}"));
    }
    // `Failed core proc(s): {'EngineCore': -9}`: Python's way to write a signal.
    let child = serious.iter().rev().find_map(|line| child_signal(line));
    if let Some((_, cause, what, hint)) = SIGNALS.iter().find(|(n, ..)| Some(*n) == signal.or(child)) {
        let whose = if signal.is_some() {
            "the engine ended"
        } else {
            "one of the engine's processes ended"
        };
        return Explained {
            cause: *cause,
            text: format!("{whose}: {what}"),
            hint: (*hint).into(),
        };
    }
    let ended = match (exit_code, signal) {
        (Some(code), _) => format!("the engine ended by itself with exit code {code}"),
        (None, Some(signal)) => format!("the engine ended by signal {signal}"),
        (None, None) => "the engine failed".to_owned(),
    };
    let text = match last_error(&serious) {
        Some(line) => format!("{ended}: {}", cut(line, MAX_DETAIL)),
        None => ended,
    };
    Explained {
        cause: CauseKind::EngineDied,
        text,
        hint: "its log says more".into(),
    }
}

impl Explained {
    /// The engine's program could not be started at all; `why` is the system's word for it.
    pub fn not_startable(recipe: &Recipe, why: &str) -> Explained {
        let program = recipe.engine_program();
        let place = match &recipe.engine.module {
            Some(module) => format!(" with module {module}"),
            None => String::new(),
        };
        Explained {
            cause: CauseKind::EngineNotFound,
            text: format!(
                "{} can't be started on this node{place} ({why})",
                program.display()
            ),
            hint: "set engine.venv or engine.module in the recipe to where vLLM is on this node".into(),
        }
    }

    /// The engine is there, and older than the recipe needs.
    pub fn engine_too_old(recipe: &Recipe, version: &str) -> Option<Explained> {
        let wanted = recipe.min_engine_version.as_deref()?;
        if version_at_least(version, wanted) {
            return None;
        }
        Some(Explained {
            cause: CauseKind::EngineTooOld,
            text: format!(
                "the engine is version {}, and {} needs {wanted}",
                cut(version, 40),
                recipe.name
            ),
            hint: "use a newer vLLM in the recipe's engine".into(),
        })
    }
}

/// vLLM tells its version first: `… version 0.32.0` in its banner, `vLLM API server version 0.10.1` in older ones.
fn too_old(lines: &[logline::LogLine], recipe: &Recipe) -> Option<Explained> {
    let version = lines
        .iter()
        .filter(|line| line.level == Level::Info)
        .find_map(|line| {
            let banner = line.text.contains('█') || line.text.contains("API server version");
            let (_, after) = line.text.split_once("version ").filter(|_| banner)?;
            after.split_whitespace().next()
        })?;
    Explained::engine_too_old(recipe, version)
}

/// Frames and the source lines below them, which hold the words of errors that did not happen. Pydantic indents its message
/// by two spaces.
fn inside_traceback(text: &str) -> bool {
    text.starts_with("    ") || text.starts_with("  File \"")
}

fn shows(sign: &Sign, line: &str, recipe: &Recipe) -> bool {
    let holds = |part: &&str| match *part {
        "{source}" => line.contains(&recipe.source),
        part => line.contains(part),
    };
    sign.ways.iter().any(|way| way.iter().all(holds))
}

fn said(sign: &Sign, line: &str, recipe: &Recipe) -> Explained {
    let filled = |text: &str| {
        text.replace("{source}", &recipe.source)
            .replace("{recipe}", &recipe.name)
    };
    Explained {
        cause: sign.cause,
        text: format!("{}: {}", filled(sign.what), cut(line, MAX_DETAIL)),
        hint: filled(sign.hint),
    }
}

/// The signal in `'EngineCore_DP0': -9` or `(exit code: -9)`.
fn child_signal(line: &str) -> Option<i32> {
    let after = if line.contains("Failed core proc(s)") {
        line.split_once("': -")?.1
    } else {
        line.split_once("exit code: -")?.1
    };
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The last line that looks like the end of a traceback, the one that names a cause before the one that only points to it.
fn last_error<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let points_elsewhere = |line: &str| {
        ["See root cause above", "See stack trace", "resource_tracker"]
            .iter()
            .any(|w| line.contains(w))
    };
    let errors = || lines.iter().rev().copied().filter(|line| is_exception(line));
    errors()
        .find(|line| !points_elsewhere(line))
        .or_else(|| errors().next())
}

/// `ValueError: …`, `torch.OutOfMemoryError: …`, `Value error, …` (pydantic's second line).
fn is_exception(line: &str) -> bool {
    if line.starts_with("Value error, ") {
        return true;
    }
    let Some((name, _)) = line.split_once(':') else {
        return false;
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    let word = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    word && (last.ends_with("Error") || last.ends_with("Exception"))
        || name.ends_with(": error")
        || name == "error"
}
