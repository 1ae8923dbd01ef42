//! Faults, each one line: where, what, what to do.

use std::fmt;
use std::path::{Path, PathBuf};

/// A recipe that does not hold. Displayed as one line, `FILE:LINE: what`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RecipeError {
    /// The file, or where the text came from.
    pub origin: PathBuf,
    /// Counted from 1; `None` where the fault has no line (a file that can't be read).
    pub line: Option<usize>,
    /// What is wrong, to what, and what to do.
    pub what: String,
}

impl RecipeError {
    pub(crate) fn new(origin: &Path, line: Option<usize>, what: impl Into<String>) -> Self {
        Self {
            origin: origin.to_path_buf(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.origin.display(), self.what),
            None => write!(f, "{}: {}", self.origin.display(), self.what),
        }
    }
}

/// An option or an argument that is refused. Displayed as one line, made for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionError(pub(crate) String);

impl OptionError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// A user's text inside a message: quoted, control characters escaped, cut to what fits a line.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut cut: String = text.chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// What could break a line, or hide on it: control characters and the two Unicode line separators.
pub(crate) fn breaks_line(c: char) -> bool {
    c.is_control() || c == '\u{2028}' || c == '\u{2029}'
}

/// The candidates that look most like `word`, best first, at most `most`.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    // A swapped pair of letters scores above 0.9, a wrong word below 0.6.
    const ALIKE: f64 = 0.7;
    let word = word.to_lowercase();
    let mut scored: Vec<(f64, &str)> = candidates
        .map(|c| {
            let lower = c.to_lowercase();
            let part = word.len() >= 3 && lower.contains(&word);
            let score = strsim::jaro_winkler(&word, &lower);
            (if part { score.max(0.9) } else { score }, c)
        })
        .filter(|(score, _)| *score >= ALIKE)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(most).map(|(_, c)| c).collect()
}
