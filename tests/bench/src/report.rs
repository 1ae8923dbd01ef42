//! What was measured, as a table for people and as JSON for whoever compares runs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serve_e2e::columns;

use crate::stats::Estimate;

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Not more than that.
    AtMost(f64),
    /// It is there to be known.
    None,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    pub measure: String,
    /// Ours.
    pub value: f64,
    /// The 95 % interval of `value`, where one can be told.
    pub interval: Option<(f64, f64)>,
    /// Of `value`, `rival_value` and `goal`.
    pub unit: &'static str,
    /// What stands beside it; empty if nothing does.
    pub rival: String,
    /// The rival's figure, measured in the same run.
    pub rival_value: Option<f64>,
    /// At most this; `None` for a figure that is only to be known.
    pub goal: Option<f64>,
    /// Whether `value` keeps the goal.
    pub met: Option<bool>,
}

impl Row {
    /// A line without a rival.
    pub fn new(measure: impl Into<String>, value: Estimate, unit: &'static str, goal: Goal) -> Self {
        let goal = match goal {
            Goal::AtMost(most) => Some(most),
            Goal::None => None,
        };
        Self {
            measure: measure.into(),
            value: value.value,
            interval: value.interval,
            unit,
            rival: String::new(),
            rival_value: None,
            goal,
            met: goal.map(|most| value.value <= most),
        }
    }

    /// A figure that was read, not sampled.
    pub fn read(measure: impl Into<String>, value: f64, unit: &'static str, goal: Goal) -> Self {
        let value = Estimate {
            value,
            interval: None,
        };
        Self::new(measure, value, unit, goal)
    }

    /// With a rival.
    pub fn beside(mut self, rival: impl Into<String>, value: Estimate) -> Self {
        self.rival = rival.into();
        self.rival_value = Some(value.value);
        self
    }
}

/// The table of one benchmark.
pub fn table(rows: &[Row]) -> String {
    let head = ["measure", "value [95 %]", "rival", "ratio", "goal", "met"].map(str::to_owned);
    let lines: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    columns(&lines)
}

fn cells(row: &Row) -> [String; 6] {
    let value = match row.interval {
        Some((low, high)) => format!(
            "{} [{}, {}] {}",
            figure(row.value),
            figure(low),
            figure(high),
            row.unit
        ),
        None => format!("{} {}", figure(row.value), row.unit),
    };
    let rival = row
        .rival_value
        .map_or(String::new(), |value| format!("{}: {}", row.rival, figure(value)));
    let ratio = match row.rival_value {
        // Beside next to nothing a ratio says nothing.
        Some(rival) if row.value > 0.0 && rival > 0.0 => format!("{}×", figure(rival / row.value)),
        _ => String::new(),
    };
    let goal = row
        .goal
        .map_or(String::new(), |goal| format!("≤ {}", figure(goal)));
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "",
    };
    [row.measure.clone(), value, rival, ratio, goal, met.into()]
}

/// Three digits that matter.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v == 0.0 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Writes `target/bench/NAME.json`, beside the folder that this program was built into, and gives its path.
pub fn write(name: &str, rows: &[Row]) -> Result<PathBuf> {
    let own = std::env::current_exe().context("can't find the running program")?;
    let target = own
        .ancestors()
        .nth(2)
        .context("the running program lies in no target folder")?;
    let folder = target.join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let path = folder.join(format!("{name}.json"));
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: Estimate = Estimate {
        value: 2.0,
        interval: Some((1.5, 2.5)),
    };

    #[test]
    fn a_row_says_whether_its_goal_is_kept() {
        let met = |goal| Row::new("x", VALUE, "ms", goal).met;
        assert_eq!(met(Goal::AtMost(2.0)), Some(true));
        assert_eq!(met(Goal::AtMost(1.9)), Some(false));
        assert_eq!(met(Goal::None), None);
    }

    #[test]
    fn the_table_holds_value_interval_rival_and_ratio() {
        let rival = Estimate {
            value: 500.0,
            interval: None,
        };
        let row = Row::new("listed", VALUE, "ms", Goal::AtMost(100.0)).beside("script", rival);
        let text = table(&[row]);
        let line = text.lines().nth(1).expect("a line");
        assert!(line.contains("2.00 [1.50, 2.50] ms"), "{line}");
        assert!(line.contains("script: 500") && line.contains("250×"), "{line}");
        assert!(line.contains("≤ 100") && line.ends_with("yes"), "{line}");
    }

    #[test]
    fn json_has_the_agreed_keys() {
        let row = Row::read("size", 1.5, "MB", Goal::None);
        let json = serde_json::to_value(&row).expect("json");
        for key in ["measure", "value", "unit", "rival", "rival_value", "goal", "met"] {
            assert!(json.get(key).is_some(), "{key}");
        }
    }
}
