//! One line of an engine's log, taken apart.

/// What a line says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Debug,
    Info,
    Warning,
    Error,
    /// No level: output of something else, or the inside of a traceback.
    None,
}

/// A line without what stands in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub level: Level,
    /// Without colours, process, level, time and place; indentation kept.
    pub text: String,
}

/// Takes `(EngineCore pid=7) INFO 11-30 12:00:00 [core.py:12] text` apart, and uvicorn's `INFO:     text`. Of a progress bar,
/// which writes over itself, the last state counts.
pub(crate) fn read(line: &str) -> LogLine {
    let plain = without_colours(line);
    let last = plain
        .rsplit('\r')
        .find(|part| !part.trim().is_empty())
        .unwrap_or_default();
    let mut rest = last.trim_end();
    while let Some(after) = process(rest) {
        rest = after;
    }
    let (level, after) = level(rest);
    if level == Level::None {
        return LogLine {
            level,
            text: rest.to_owned(),
        };
    }
    let text = place(time(after.trim_start()));
    LogLine {
        level,
        text: text.to_owned(),
    }
}

/// `(Worker_TP0 pid=12) `
fn process(line: &str) -> Option<&str> {
    let (inside, rest) = line.strip_prefix('(')?.split_once(')')?;
    let (name, pid) = inside.split_once(" pid=")?;
    let fine = !name.is_empty() && pid.starts_with(|c: char| c.is_ascii_digit());
    fine.then(|| rest.strip_prefix(' ').unwrap_or(rest))
}

fn level(line: &str) -> (Level, &str) {
    for (word, level) in [
        ("DEBUG", Level::Debug),
        ("INFO", Level::Info),
        ("WARNING", Level::Warning),
        ("ERROR", Level::Error),
        ("CRITICAL", Level::Error),
    ] {
        if let Some(rest) = line.strip_prefix(word) {
            let rest = rest.strip_prefix(':').unwrap_or(rest);
            if rest.is_empty() || rest.starts_with(' ') {
                return (level, rest);
            }
        }
    }
    (Level::None, line)
}

/// `11-30 12:00:00 `
fn time(line: &str) -> &str {
    let shape = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text
                .bytes()
                .zip(shape.bytes())
                .all(|(t, s)| if s == b'0' { t.is_ascii_digit() } else { t == s })
    };
    match line.split_at_checked(14) {
        Some((stamp, rest)) if shape(stamp, "00-00 00:00:00") => rest.trim_start(),
        _ => line,
    }
}

/// `[core.py:12] `; a message's own indentation behind it stays: it is how the inside of a traceback is known.
fn place(line: &str) -> &str {
    let inside = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match inside {
        Some((place, rest)) if place.contains(".py:") || place.contains(".rs:") => {
            rest.strip_prefix(' ').unwrap_or(rest)
        }
        _ => line,
    }
}

/// Removes escape sequences of terminals.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next_if_eq(&'[').is_some() {
                    // Parameters, then one final byte from '@' to '~'.
                    for c in chars.by_ref() {
                        if ('@'..='~').contains(&c) {
                            break;
                        }
                    }
                }
            }
            '\t' => plain.push(' '),
            c if c.is_control() && c != '\r' => {}
            c => plain.push(c),
        }
    }
    plain
}

/// At most this many characters of it, with a mark where it was cut.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_is_taken_off() {
        for (line, level, text) in [
            (
                "(APIServer pid=21816) INFO 12-01 00:03:09 [api_utils.py:286] Starting",
                Level::Info,
                "Starting",
            ),
            (
                "(EngineCore pid=1) (Worker pid=2) ERROR 12-01 00:03:09 [core.py:390]   File x",
                Level::Error,
                "  File x",
            ),
            (
                "(Worker_TP0 pid=5) RuntimeError: x",
                Level::None,
                "RuntimeError: x",
            ),
            (
                "INFO:     Application startup complete.",
                Level::Info,
                "Application startup complete.",
            ),
            (
                "WARNING 08-08 08:01:26 [core.py:111] Using",
                Level::Warning,
                "Using",
            ),
            ("INFORMATION is power", Level::None, "INFORMATION is power"),
            ("  Value error, x", Level::None, "  Value error, x"),
            (
                "\u{1b}[32mINFO\u{1b}[0m 08-08 08:01:26 [a.py:1] green",
                Level::Info,
                "green",
            ),
            (
                "Loading:  0%|\rLoading: 50%|\rLoading: 98%|#| 3/4\r",
                Level::None,
                "Loading: 98%|#| 3/4",
            ),
            ("(no pid) x", Level::None, "(no pid) x"),
            ("INFO 08-08", Level::Info, "08-08"),
            ("", Level::None, ""),
            ("\u{1b}", Level::None, ""),
            ("\u{1b}[", Level::None, ""),
        ] {
            assert_eq!(
                read(line),
                LogLine {
                    level,
                    text: text.to_owned()
                },
                "{line:?}"
            );
        }
    }
}
