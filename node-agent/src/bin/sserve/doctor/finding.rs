//! What was looked at: a verdict, what was seen, what to do.

use serde::Serialize;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, with a consequence that is named.
    Warn,
    /// Models are not served here, or not as they should be.
    Fail,
    /// Could not be looked at, and why.
    Skip,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; stable, for scripts.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen: one line.
    pub seen: String,
    /// What to do about it: one line.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

/// All rows, in the order in which they were looked at.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn ok(&mut self, check: &'static str, seen: impl Into<String>) {
        self.add(check, Verdict::Ok, seen.into(), None);
    }

    pub fn warn(&mut self, check: &'static str, seen: impl Into<String>, todo: impl Into<String>) {
        self.add(check, Verdict::Warn, seen.into(), Some(todo.into()));
    }

    pub fn fail(&mut self, check: &'static str, seen: impl Into<String>, todo: impl Into<String>) {
        self.add(check, Verdict::Fail, seen.into(), Some(todo.into()));
    }

    pub fn skip(&mut self, check: &'static str, why: impl Into<String>) {
        self.add(check, Verdict::Skip, why.into(), None);
    }

    pub fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|finding| finding.verdict == verdict).count()
    }

    fn add(&mut self, check: &'static str, verdict: Verdict, seen: String, todo: Option<String>) {
        self.0.push(Finding {
            check,
            verdict,
            seen,
            todo: todo.filter(|todo| !todo.is_empty()),
        });
    }

    /// The verdict on a check that was made once.
    #[cfg(test)]
    pub fn verdict(&self, check: &str) -> Option<Verdict> {
        self.0
            .iter()
            .find(|finding| finding.check == check)
            .map(|it| it.verdict)
    }
}
