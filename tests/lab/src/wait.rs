//! Waiting for a condition: with an end, and saying what was waited for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Asks `condition` until it gives something, at most for `limit`.
///
/// `what` completes the sentence "gave up after 5 s waiting for …". An error from the condition ends the wait: what
/// may pass is `Ok(None)`.
pub fn wait_for<T>(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(found) = condition().with_context(|| format!("while waiting for {what}"))? {
            return Ok(found);
        }
        if start.elapsed() >= limit {
            bail!("gave up after {:.1} s waiting for {what}", limit.as_secs_f64());
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_the_condition_gives() {
        let mut asked = 0;
        let found = wait_for(Duration::from_secs(5), "three", || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(found.unwrap(), 3);
    }

    #[test]
    fn says_what_it_waited_for() {
        let error = wait_for::<()>(Duration::ZERO, "rain", || Ok(None)).unwrap_err();
        assert_eq!(error.to_string(), "gave up after 0.0 s waiting for rain");
    }

    #[test]
    fn an_error_ends_the_wait() {
        let error = wait_for::<()>(Duration::from_secs(60), "rain", || bail!("no sky")).unwrap_err();
        assert_eq!(format!("{error:#}"), "while waiting for rain: no sky");
    }
}
