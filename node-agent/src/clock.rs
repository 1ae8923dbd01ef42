//! Time as the wire and Slurm tell it.
#![allow(unsafe_code)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The next whole second of the wall clock. What many do every second is begun then by all of them, so that the agent, on a node with many
/// models, is woken once for them and not once for each.
pub fn next_second() -> tokio::time::Instant {
    let rest = 1000 - u64::try_from(now_ms().rem_euclid(1000)).unwrap_or(0);
    tokio::time::Instant::now() + Duration::from_millis(rest)
}

/// Seconds since the epoch of a moment in the machine's time zone; `None` if there is no such moment.
pub fn local_to_epoch(year: i32, month: i32, day: i32, hour: i32, minute: i32, second: i32) -> Option<i64> {
    // SAFETY: an all-zero `tm` is a valid value of this plain C struct.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    time.tm_year = year.checked_sub(1900)?;
    time.tm_mon = month.checked_sub(1)?;
    (time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec) = (day, hour, minute, second);
    // Let the C library find out about daylight saving.
    time.tm_isdst = -1;
    // SAFETY: mktime reads and normalises the struct it is given and keeps no pointer.
    let seconds = unsafe { libc::mktime(&mut time) };
    (seconds != -1).then_some(seconds)
}

/// Whether something (NTP, PTP) keeps this machine's clock in time, as the kernel was told. `None`: the kernel does not say.
pub fn is_synchronised() -> Option<bool> {
    // SAFETY: an all-zero `timex` is a valid value of this plain C struct; `modes` 0 asks and sets nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: adjtimex writes into the struct it is given and keeps no pointer.
    let code = unsafe { libc::adjtimex(&mut state) };
    (code != -1).then_some(code != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}
