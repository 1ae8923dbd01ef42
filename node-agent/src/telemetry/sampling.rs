//! The beat: a sample with each reading of the GPUs; where there is none to be had, by the clock.

use std::sync::Arc;
use std::time::Duration;

use slurm_serve_proto::v1;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::gpu::Gpus;
use super::host::Host;
use super::own;
use crate::clock::now_ms;
use crate::rpc::Counts;

/// Samples until nobody can hear of them any more.
pub async fn run(
    told: watch::Sender<Arc<v1::NodeSample>>,
    mut gpus: watch::Receiver<Arc<Gpus>>,
    cluster: watch::Receiver<String>,
    counts: Counts,
    interval: Duration,
) {
    let node = told.borrow().node.clone();
    let (mut beat, mut host) = (Beat::new(interval), Host::default());
    while !told.is_closed() {
        let read = next(&mut gpus, &beat).await;
        if !beat.is_due(&read) {
            continue;
        }
        let cluster = cluster.borrow().clone();
        let mut sample = beat.sample(&node, cluster, &read);
        sample.host = Some(host.read());
        if let Some(own) = &mut sample.self_ {
            own.rpcs = counts.told();
        }
        told.send_replace(Arc::new(sample));
    }
}

/// The next reading, or the last one again if none comes in time.
async fn next(gpus: &mut watch::Receiver<Arc<Gpus>>, beat: &Beat) -> Arc<Gpus> {
    let until = beat.last + beat.patience(gpus.borrow().driver.state());
    if let Ok(Err(_)) = timeout_at(until, gpus.changed()).await {
        // Whoever reads GPUs is gone; the rest is still worth telling.
        tokio::time::sleep_until(until).await;
    }
    gpus.borrow_and_update().clone()
}

/// What is remembered between two samples.
struct Beat {
    interval: Duration,
    last: Instant,
    count: u64,
    longest_gap: Duration,
    driver: v1::DriverState,
}

impl Beat {
    fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: Instant::now(),
            count: 0,
            longest_gap: Duration::ZERO,
            driver: v1::DriverState::Unspecified,
        }
    }

    /// A driver that answers sets the beat itself, and may be a little late.
    fn patience(&self, driver: v1::DriverState) -> Duration {
        match driver {
            v1::DriverState::Ok => self.interval.mul_f64(1.5),
            _ => self.interval,
        }
    }

    /// Words on the driver come in between; what is new in them does not wait.
    fn is_due(&self, read: &Gpus) -> bool {
        self.last.elapsed() >= self.interval / 2 || read.driver.state() != self.driver
    }

    fn sample(&mut self, node: &str, cluster: String, read: &Gpus) -> v1::NodeSample {
        let gap = self.last.elapsed();
        if self.count > 0 {
            self.longest_gap = self.longest_gap.max(gap);
        }
        self.last = Instant::now();
        self.count += 1;
        self.driver = read.driver.state();
        let (resident_bytes, cpu_seconds) = own::cost();
        v1::NodeSample {
            node: node.to_owned(),
            cluster,
            at_ms: now_ms(),
            sequence: self.count,
            driver: Some(read.driver.clone()),
            gpus: read.aged(),
            self_: Some(v1::SelfTelemetry {
                resident_bytes,
                cpu_seconds,
                samples: self.count,
                longest_gap_seconds: self.longest_gap.as_secs_f64(),
                sample_seconds: read.sample_seconds,
                reader_resident_bytes: read.cost.0,
                reader_cpu_seconds: read.cost.1,
                calls: read.calls.clone(),
                rpcs: Vec::new(),
            }),
            ..v1::NodeSample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(state: v1::DriverState) -> Arc<Gpus> {
        let mut gpus = Gpus::none();
        gpus.driver.state = state.into();
        Arc::new(gpus)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_a_driver_is_sampled_by_the_clock() {
        let (told, mut samples) = watch::channel(Arc::new(v1::NodeSample::default()));
        let (_reading, read) = watch::channel(gpus(v1::DriverState::Absent));
        let (_name, cluster) = watch::channel("lab".to_owned());
        tokio::spawn(run(
            told,
            read,
            cluster,
            Counts::default(),
            Duration::from_secs(1),
        ));
        let began = Instant::now();
        for sequence in 1..=5 {
            samples.changed().await.unwrap();
            let sample = samples.borrow_and_update().clone();
            assert_eq!((sample.sequence, sample.cluster.as_str()), (sequence, "lab"));
        }
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_driver_is_told_at_once_and_its_repetitions_are_not() {
        let (told, mut samples) = watch::channel(Arc::new(v1::NodeSample::default()));
        let (reading, read) = watch::channel(gpus(v1::DriverState::Ok));
        let (_name, cluster) = watch::channel(String::new());
        tokio::spawn(run(
            told,
            read,
            cluster,
            Counts::default(),
            Duration::from_secs(10),
        ));
        reading.send_replace(gpus(v1::DriverState::Hung));
        let began = Instant::now();
        samples.changed().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let state = |sample: &v1::NodeSample| sample.driver.as_ref().map(v1::Driver::state);
        assert_eq!(state(&samples.borrow_and_update()), Some(v1::DriverState::Hung));
        reading.send_replace(gpus(v1::DriverState::Hung));
        samples.changed().await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn sampling_goes_on_when_nobody_reads_gpus_any_more() {
        let (told, mut samples) = watch::channel(Arc::new(v1::NodeSample::default()));
        let (reading, read) = watch::channel(gpus(v1::DriverState::Ok));
        let (_name, cluster) = watch::channel(String::new());
        tokio::spawn(run(
            told,
            read,
            cluster,
            Counts::default(),
            Duration::from_secs(1),
        ));
        drop(reading);
        samples.changed().await.unwrap();
        samples.changed().await.unwrap();
        assert_eq!(samples.borrow().sequence, 2);
    }
}
