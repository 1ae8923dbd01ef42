//! `docs/endings.md`: the table as a page, with what the last recorded run on each release measured.
//!
//! The page is made, never written: a test compares it with what the table says now, and `UPDATE_GENERATED=1` makes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serve_lab::Release;

use super::report::{Measured, Verdict};
use super::row::Row;
use super::rows::groups;

/// The lease that the product comes with.
const LEASE: Duration = Duration::from_secs(10);

/// A whole run on one release.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The day, `YYYY-MM-DD` (UTC).
    pub day: String,
    /// As Slurm tells its own version.
    pub slurm: String,
    /// Every scenario.
    pub measured: Vec<Measured>,
}

/// The last recorded run on each release, by its name.
pub type Record = BTreeMap<String, Run>;

/// Where runs are recorded.
fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("endings.json")
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/endings.md")
}

/// What is recorded.
pub fn record() -> Result<Record> {
    let path = record_path();
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no record of runs", path.display()))
}

/// Records a run in place of the last one on its release, and makes the page anew.
pub fn keep(release: Release, run: Run) -> Result<()> {
    let mut all = record()?;
    all.insert(release.to_string(), run);
    let path = record_path();
    let text = serde_json::to_string_pretty(&all)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    write_page()
}

/// Makes the page anew.
pub fn write_page() -> Result<()> {
    let path = page_path();
    std::fs::write(&path, page(&record()?)).with_context(|| format!("can't write {}", path.display()))
}

const HEAD: &str = "# How a job can end, and what can die under it

<!-- Made from the table in tests/e2e/src/endings/rows and the runs recorded in tests/e2e/endings.json; change those, then
     UPDATE_GENERATED=1 cargo test -p serve-e2e --lib -->

The promise is that a model is in the catalog exactly while it answers. Each line below is played on a lab, a real Slurm in namespaces of one
machine with the stub engine in vLLM's place: one job with a model serves, three clients ask the gateway without pause, and the catalog is
looked at every few milliseconds.

    make test-faults                 # all of it, on Slurm 22.05, 24.11 and 26.05
    make test-faults SLURM=26.05     # on one release
    make test-faults ROW=agent       # lines with this in their names
    make soak MINUTES=20             # lines at random

Every line also checks that `sserve status` tells the state with its cause, that the job's exit code is its script's own, that no process,
socket, file, key, cgroup or segment of shared memory is left on any node, and that no node is out of service.

**Bound.** *0 lost*: every request is answered, or told in order that the model ends (404, or 503 with a reason). A time: from the blow until
the model is out of the catalog; requests sent later are answered or refused in order, those in flight at that moment may break.
**Measured** times are up to 10 ms too long; what is *pending* is not as it should be yet.
";

/// The page's text.
pub fn page(record: &Record) -> String {
    let mut text = HEAD.to_owned();
    for (release, run) in record {
        let _ = writeln!(
            text,
            "\nMeasured on Slurm {release} ({}) on {}.",
            run.slurm, run.day
        );
    }
    for group in groups() {
        let _ = write!(text, "\n## {}\n\n{}\n\n", group.title, group.text);
        let _ = writeln!(
            text,
            "| what happens | model · job | bound | {} |",
            join(record.keys())
        );
        let _ = writeln!(text, "|---|---|---|{}", "---|".repeat(record.len().max(1)));
        for row in group.rows {
            let cells = record.values().map(|run| cell(row, run));
            let _ = writeln!(
                text,
                "| **{}.** {} | {} | {} | {} |",
                row.name,
                row.done,
                row.expected(),
                row.bound.text(LEASE),
                join(cells)
            );
        }
    }
    text
}

fn join(cells: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let cells: Vec<String> = cells.map(|cell| cell.to_string()).collect();
    cells.join(" | ")
}

fn cell(row: &Row, run: &Run) -> String {
    let measured = run.measured.iter().find(|one| one.name == row.name);
    match measured.map(|one| (&one.verdict, one.figure())) {
        None => "–".to_owned(),
        Some((Verdict::Met, figure)) => figure,
        Some((Verdict::Failed(_), _)) => "**failed**".to_owned(),
        Some((Verdict::Pending(why), _)) => format!("*pending: {why}*"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_table_says() {
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            write_page().expect("the page");
        }
        let there = std::fs::read_to_string(page_path()).unwrap_or_default();
        let made = page(&record().expect("the record"));
        assert!(
            there == made,
            "docs/endings.md is stale: UPDATE_GENERATED=1 cargo test -p serve-e2e --lib"
        );
    }

    #[test]
    fn what_failed_or_was_not_played_is_told_so() {
        let row = super::super::rows::all().next().expect("a row");
        let measured = Measured {
            verdict: Verdict::Failed("x".into()),
            ..Measured::of(row, LEASE)
        };
        let mut run = Run {
            day: "2000-01-01".into(),
            slurm: "1.2".into(),
            measured: vec![measured],
        };
        assert_eq!(cell(row, &run), "**failed**");
        run.measured.clear();
        assert_eq!(cell(row, &run), "–");
    }
}
