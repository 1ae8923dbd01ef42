//! Time in which this process could run. A suspended job's clocks go on, and nothing in it can be blamed for what it did not do meanwhile.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The longest piece of a wait; a process that comes back from one much later was not running.
const PIECE: Duration = Duration::from_secs(1);

/// Waits until this process has been awake for so long.
pub async fn awake(mut left: Duration) {
    while !left.is_zero() {
        let piece = left.min(PIECE);
        let began = Instant::now();
        sleep(piece).await;
        left = left.saturating_sub(counted(began.elapsed(), piece));
    }
}

/// What of `passed` counts, where `meant` was meant to pass. A loaded machine is late too, and that counts.
pub fn counted(passed: Duration, meant: Duration) -> Duration {
    passed.min(meant * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_takes_its_time_and_a_frozen_clock_does_not_shorten_it() {
        let began = Instant::now();
        awake(Duration::from_millis(2500)).await;
        assert!(began.elapsed() >= Duration::from_millis(2500) && began.elapsed() < Duration::from_secs(3));

        let waiting = tokio::spawn(awake(Duration::from_secs(60)));
        tokio::task::yield_now().await;
        // An hour in which the process did not run: one piece of the wait.
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokio::task::yield_now().await;
        let began = Instant::now();
        waiting.await.unwrap();
        assert!(
            began.elapsed() >= Duration::from_secs(57),
            "{:?}",
            began.elapsed()
        );
    }
}
