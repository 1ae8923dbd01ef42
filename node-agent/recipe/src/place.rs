//! The place of a fault in a recipe's text, and the checks that need one.

use std::path::Path;
use std::time::Duration;

use toml::Spanned;

use crate::error::{RecipeError, breaks_line, nearest, shown};

/// The longest message of the TOML reader that is passed on, in characters.
const MAX_MESSAGE: usize = 300;

/// The most entries of a list.
pub(crate) const MAX_LIST: usize = 64;
/// No model takes longer than this to load, and no deadline is meant to be longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// What may stand in a recipe; for the nearest key.
const KEYS: &[&str] = &[
    "name",
    "source",
    "description",
    "task",
    "args",
    "env",
    "pass_env",
    "gpus",
    "gpu_memory_gib",
    "min_engine_version",
    "ready_timeout",
    "drain_timeout",
    "restart",
    "max_restarts",
    "restart_pause",
    "unresponsive_after",
    "aliases",
    "publish",
    "engine",
    "models",
];
const ENGINE_KEYS: &[&str] = &["command", "module", "venv", "container"];

/// Where faults are: a text and what it is called.
pub(crate) struct Place<'a> {
    pub text: &'a str,
    pub origin: &'a Path,
}

impl Place<'_> {
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
    }

    pub(crate) fn fault(&self, offset: usize, what: impl Into<String>) -> RecipeError {
        RecipeError::new(self.origin, Some(self.line(offset)), what)
    }

    /// The line that assigns a top-level key, or opens its table.
    pub(crate) fn line_of_key(&self, key: &str) -> Option<usize> {
        let opens = |line: &str| {
            let line = line
                .trim_start()
                .trim_start_matches('[')
                .trim_start_matches(['"', '\'']);
            line.strip_prefix(key)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        self.text.lines().position(opens).map(|index| index + 1)
    }

    pub(crate) fn check(
        &self,
        value: Spanned<String>,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, RecipeError> {
        check(value.get_ref()).map_err(|what| self.fault(value.span().start, what))?;
        Ok(value.into_inner())
    }

    pub(crate) fn list(
        &self,
        key: &str,
        values: Option<Vec<Spanned<String>>>,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<Vec<String>, RecipeError> {
        let mut list: Vec<String> = Vec::new();
        for value in values.unwrap_or_default() {
            let start = value.span().start;
            let value = self.check(value, &check)?;
            if list.contains(&value) {
                return Err(self.fault(start, format!("{key} names {value} twice")));
            }
            if list.len() == MAX_LIST {
                return Err(self.fault(start, format!("{key} names more than {MAX_LIST}")));
            }
            list.push(value);
        }
        Ok(list)
    }

    pub(crate) fn duration(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        default: Duration,
        least: Duration,
    ) -> Result<Duration, RecipeError> {
        let Some(value) = value else { return Ok(default) };
        let start = value.span().start;
        let text = value.get_ref();
        match humantime::parse_duration(text) {
            Ok(duration) if (least..=MAX_TIMEOUT).contains(&duration) => Ok(duration),
            Ok(_) => Err(self.fault(
                start,
                format!(
                    "{key} = {} is not between {} and {}",
                    shown(text),
                    humantime::format_duration(least),
                    humantime::format_duration(MAX_TIMEOUT)
                ),
            )),
            Err(e) => {
                let what = format!(
                    "{key} = {} is no duration ({e}); write \"30m\", \"90s\"",
                    shown(text)
                );
                Err(self.fault(start, what))
            }
        }
    }

    /// A fault that the TOML reader found, in a line of our own.
    pub(crate) fn syntax(&self, error: &toml::de::Error) -> RecipeError {
        let span = error.span();
        let line = span.as_ref().map(|s| self.line(s.start));
        let message = error
            .message()
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("; ");
        // It quotes what stood in the file.
        let message: String = message
            .chars()
            .map(|c| if breaks_line(c) { ' ' } else { c })
            .take(MAX_MESSAGE)
            .collect();
        let what = if let Some(key) = message
            .strip_prefix("unknown field `")
            .and_then(|m| m.split('`').next())
        {
            let in_engine = ENGINE_KEYS.iter().all(|k| message.contains(&format!("`{k}`")));
            let keys = if in_engine { ENGINE_KEYS } else { KEYS };
            match nearest(key, keys.iter().copied(), 1).first() {
                Some(near) => format!("unknown key {}; did you mean {near}?", shown(key)),
                None => format!("unknown key {}; there are {}", shown(key), keys.join(", ")),
            }
        } else {
            match span.and_then(|s| self.key_before(s.start)) {
                Some(key) if message.starts_with("invalid") => {
                    let message = message.replace("expected i64", "expected a whole number");
                    let example = if key.ends_with("_timeout") {
                        "; write \"30m\", \"90s\""
                    } else {
                        ""
                    };
                    format!("{key}: {message}{example}")
                }
                _ => message,
            }
        };
        RecipeError::new(self.origin, line, what)
    }

    /// The key whose value stands at this place, if it is on the same line.
    pub(crate) fn key_before(&self, offset: usize) -> Option<&str> {
        let before = self.text.get(..offset)?;
        let line = before.rsplit('\n').next()?;
        let key = line.split('=').next()?.trim();
        (line.contains('=') && !key.is_empty() && !key.contains(breaks_line)).then_some(key)
    }
}
