//! What a process of ours costs.

use procfs::process::Process;

/// Memory that is really there, in bytes, and time on CPUs, in seconds, of this process. Each absent where /proc does not say.
pub fn cost() -> (Option<u64>, Option<f64>) {
    let Ok(stat) = Process::myself().and_then(|own| own.stat()) else {
        return (None, None);
    };
    let ticks = procfs::ticks_per_second();
    (
        Some(stat.rss * procfs::page_size()),
        Some((stat.utime + stat.stime) as f64 / ticks.max(1) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_took_time() {
        let (bytes, seconds) = cost();
        assert!(bytes.is_some_and(|bytes| bytes > 1 << 16));
        assert!(seconds.is_some_and(|seconds| seconds >= 0.0));
    }
}
