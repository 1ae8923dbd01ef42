//! Log lines as vLLM writes them: what a runner tails, shows to people and explains failures from.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which process a line claims to come from.
#[derive(Clone, Copy)]
pub enum Who {
    /// The HTTP server.
    Api,
    /// The engine; its lines come from the same process unless `STUB_CHILD` is set.
    Core,
}

impl Who {
    fn prefix(self) -> String {
        let name = match self {
            Self::Api => "APIServer",
            Self::Core => "EngineCore_DP0",
        };
        format!("({name} pid={}) ", std::process::id())
    }
}

/// One line at INFO; `place` is the Python file and line that vLLM would name.
pub fn info(who: Who, place: &str, text: impl std::fmt::Display) {
    line(format_args!("{}INFO {} [{place}] {text}", who.prefix(), stamp()));
}

/// One line at ERROR.
pub fn error(who: Who, place: &str, text: impl std::fmt::Display) {
    line(format_args!("{}ERROR {} [{place}] {text}", who.prefix(), stamp()));
}

/// uvicorn's own format, used for start-up and access lines.
pub fn uvicorn(text: impl std::fmt::Display) {
    line(format_args!("{}INFO:     {text}", Who::Api.prefix()));
}

/// A bare line. A reader that went away must not end the stub, so errors are dropped.
pub fn line(text: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A progress bar: rewritten in place with a carriage return, as tqdm does.
pub fn bar(text: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(format!("\r{text}").as_bytes());
}

/// `MM-DD hh:mm:ss` in UTC.
fn stamp() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (month, day) = month_and_day(seconds / 86_400);
    let s = seconds % 86_400;
    format!(
        "{month:02}-{day:02} {:02}:{:02}:{:02}",
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

fn month_and_day(mut days: u64) -> (usize, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    for (i, length) in lengths.into_iter().enumerate() {
        if days < length {
            return (i + 1, days + 1);
        }
        days -= length;
    }
    unreachable!("less than a year of days is left")
}

#[cfg(test)]
mod tests {
    use super::month_and_day;

    #[test]
    fn knows_the_calendar() {
        assert_eq!(month_and_day(0), (1, 1));
        assert_eq!(month_and_day(19_782), (2, 29)); // 2024
        assert_eq!(month_and_day(20_423), (12, 1)); // 2025
    }
}
