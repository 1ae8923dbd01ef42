//! What came of scenarios: a table for people, JSON for whoever compares runs and for the page.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::row::Row;
use crate::columns;

/// Whether a scenario came out as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    /// It did.
    Met,
    /// It did not: why.
    Failed(String),
    /// It is known not to, or was not played: why.
    Pending(String),
}

/// One line of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The scenario.
    pub name: String,
    /// What was expected, in words.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// The bound, in words.
    pub bound: String,
    /// From the blow until the model was out of the catalog, where it was to leave; in seconds, at most 10 ms too long.
    pub seconds: Option<f64>,
    /// Requests sent meanwhile.
    pub asked: usize,
    /// Of them, lost.
    pub lost: usize,
    /// How it came out.
    #[serde(flatten)]
    pub verdict: Verdict,
}

impl Measured {
    /// Nothing was measured yet.
    pub fn of(row: &Row, lease: Duration) -> Self {
        Self {
            name: row.name.to_owned(),
            expected: row.expected(),
            seen: String::new(),
            bound: row.bound.text(lease),
            seconds: None,
            asked: 0,
            lost: 0,
            verdict: Verdict::Pending("not played".into()),
        }
    }

    /// What was measured, in words.
    pub fn figure(&self) -> String {
        let requests = format!("{} of {} lost", self.lost, self.asked);
        match (self.asked, self.seconds) {
            (0, _) => String::new(),
            (_, None) => requests,
            (_, Some(seconds)) => format!("{seconds:.2} s, {requests}"),
        }
    }

    fn word(&self) -> String {
        match &self.verdict {
            Verdict::Met => "ok".into(),
            Verdict::Failed(_) => "FAILED".into(),
            Verdict::Pending(why) => format!("pending: {why}"),
        }
    }
}

/// The table, and below it why what failed did.
pub fn table(all: &[Measured]) -> String {
    let head = ["scenario", "expected", "seen", "bound", "measured", ""].map(str::to_owned);
    let cells = |one: &Measured| {
        [
            one.name.clone(),
            one.expected.clone(),
            one.seen.clone(),
            one.bound.clone(),
            one.figure(),
            one.word(),
        ]
    };
    let lines: Vec<[String; 6]> = std::iter::once(head).chain(all.iter().map(cells)).collect();
    let mut text = columns(&lines);
    for one in all {
        if let Verdict::Failed(why) = &one.verdict {
            let _ = writeln!(text, "\nFAILED: {}\n{why}", one.name);
        }
    }
    let count = |wanted: fn(&Verdict) -> bool| all.iter().filter(|one| wanted(&one.verdict)).count();
    let _ = writeln!(
        text,
        "\n  {} ok, {} failed, {} pending",
        count(|verdict| *verdict == Verdict::Met),
        count(|verdict| matches!(verdict, Verdict::Failed(_))),
        count(|verdict| matches!(verdict, Verdict::Pending(_)))
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endings::rows::all as rows;

    fn measured(verdict: Verdict) -> Measured {
        let row = rows().next().expect("a row");
        Measured {
            seconds: Some(0.256),
            asked: 40,
            verdict,
            ..Measured::of(row, Duration::from_secs(10))
        }
    }

    #[test]
    fn what_is_pending_is_never_ok() {
        let text = table(&[measured(Verdict::Pending("no such part".into()))]);
        assert!(
            text.contains("pending: no such part") && text.contains("0 ok, 0 failed, 1 pending"),
            "{text}"
        );
    }

    #[test]
    fn a_failure_is_explained_below_the_table() {
        let text = table(&[measured(Verdict::Failed("it is still there".into()))]);
        assert!(
            text.contains("0.26 s, 0 of 40 lost") && text.contains("it is still there"),
            "{text}"
        );
    }

    #[test]
    fn json_comes_back_as_it_went() {
        for verdict in [
            Verdict::Met,
            Verdict::Pending("x".into()),
            Verdict::Failed("y".into()),
        ] {
            let text = serde_json::to_string(&measured(verdict.clone())).expect("JSON");
            let back: Measured = serde_json::from_str(&text).expect("a line");
            assert_eq!(back.verdict, verdict, "{text}");
        }
    }
}
