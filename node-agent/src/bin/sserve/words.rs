//! Models in words.

use std::time::{SystemTime, UNIX_EPOCH};

use slurm_serve::listing::{ListedEnding, ListedModel};

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A span of time in its two largest units: `12s`, `3m 12s`, `2h 5m`, `3d 4h`.
pub fn span(ms: i64) -> String {
    let s = ms.max(0) / 1000;
    let (m, h, d) = (s / 60, s / 3600, s / 86400);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m {}s", s % 60),
        (0, ..) => format!("{h}h {}m", m % 60),
        _ => format!("{d}d {}h", h % 24),
    }
}

/// `1 agent`, `3 agents`.
pub fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// How long ago a moment (milliseconds since the epoch) was; empty for one that is not known.
pub fn since(ms: i64) -> String {
    match ms {
        0 => String::new(),
        _ => span(now_ms() - ms),
    }
}

/// `tiny (job 12 on n1)`.
pub fn which(model: &ListedModel) -> String {
    format!("{} (job {} on {})", model.name, model.job_id, model.node)
}

/// Whether the model is over.
pub fn is_over(model: &ListedModel) -> bool {
    matches!(model.state.as_str(), "ended" | "failed")
}

/// Why and how it ended: what happened, what to do, where the log is, in one line.
pub fn ending(model: &ListedModel) -> String {
    let none = ListedEnding::default();
    let ending = model.ending.as_ref().unwrap_or(&none);
    let mut parts = vec![format!("{} {}", which(model), past(&model.state))];
    match (ending.text.as_str(), ending.cause.as_str()) {
        ("", "" | "unspecified") => {}
        ("", cause) => parts[0] += &format!(": {}", cause.replace('_', " ")),
        (text, _) => parts[0] += &format!(": {text}"),
    }
    if !ending.hint.is_empty() {
        parts.push(ending.hint.clone());
    }
    if let Some(log) = log_path(model) {
        parts.push(format!("log: {log}"));
    }
    parts.join("; ")
}

/// The log's path with its node before it.
pub fn log_path(model: &ListedModel) -> Option<String> {
    let of_ending = model.ending.as_ref().map(|ending| ending.log_path.as_str());
    let path = of_ending
        .into_iter()
        .chain([model.log_path.as_str()])
        .find(|path| !path.is_empty())?;
    Some(format!("{}:{path}", model.node))
}

/// What a waiting person sees of a model that is not ready yet: its state, how long it has been in it, and the engine's last word.
pub fn progress(model: &ListedModel) -> String {
    let mut text = format!("{}: {}", which(model), model.state);
    let since = since(model.state_since_ms);
    if !since.is_empty() {
        text += &format!(" for {since}");
    }
    if !model.progress.is_empty() {
        text += &format!(": {}", model.progress);
    }
    text
}

fn past(state: &str) -> &str {
    match state {
        "ended" => "has ended",
        "failed" => "failed",
        "draining" => "is ending",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_name_their_two_largest_units() {
        let spans = [-5, 999, 12_000, 192_000, 7_500_000, 273_600_000].map(span);
        assert_eq!(spans, ["0s", "0s", "12s", "3m 12s", "2h 5m", "3d 4h"]);
    }

    #[test]
    fn an_ending_says_what_why_what_to_do_and_where_in_one_line() {
        let mut model = ListedModel {
            name: "tiny".into(),
            job_id: 12,
            node: "n1".into(),
            state: "failed".into(),
            ..ListedModel::default()
        };
        assert_eq!(ending(&model), "tiny (job 12 on n1) failed");
        model.ending = Some(ListedEnding {
            cause: "weights_missing".into(),
            ..ListedEnding::default()
        });
        assert_eq!(ending(&model), "tiny (job 12 on n1) failed: weights missing");
        model.ending = Some(ListedEnding {
            text: "no weights at /w".into(),
            hint: "check the recipe's source".into(),
            log_path: "/home/a/serve-12.log".into(),
            ..ListedEnding::default()
        });
        assert_eq!(
            ending(&model),
            "tiny (job 12 on n1) failed: no weights at /w; check the recipe's source; log: n1:/home/a/serve-12.log"
        );
    }
}
