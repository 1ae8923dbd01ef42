//! What is known of the GPUs of this node: the last reading, with its age, and each GPU that was ever seen.

use std::collections::HashMap;
use std::time::Instant;

use slurm_serve_proto::v1;

/// A reading.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// How the driver is.
    pub driver: v1::Driver,
    /// As they were read last; their ages are to be set by [`Gpus::aged`].
    gpus: Vec<v1::Gpu>,
    /// When they were read.
    read: Instant,
    /// What the calls cost so far.
    pub calls: Vec<v1::DriverCall>,
    /// What the last reading took.
    pub sample_seconds: f64,
    /// Memory and time on CPUs of the process that reads.
    pub cost: (Option<u64>, Option<f64>),
    /// Counts readings.
    pub count: u64,
}

impl Gpus {
    /// Before the first one.
    pub fn none() -> Self {
        Self {
            driver: v1::Driver::default(),
            gpus: Vec::new(),
            read: Instant::now(),
            calls: Vec::new(),
            sample_seconds: 0.0,
            cost: (None, None),
            count: 0,
        }
    }

    /// The GPUs with their ages at this moment. Those of a driver that is not in order are stale: nobody has read them.
    pub fn aged(&self) -> Vec<v1::Gpu> {
        let age_ms = i64::try_from(self.read.elapsed().as_millis()).unwrap_or(i64::MAX);
        let is_stale = self.driver.state() != v1::DriverState::Ok;
        let aged = |gpu: &v1::Gpu| {
            let mut gpu = gpu.clone();
            gpu.age_ms = age_ms;
            if is_stale && gpu.state() == v1::GpuState::Ok {
                gpu.state = v1::GpuState::Stale.into();
            }
            gpu
        };
        self.gpus.iter().map(aged).collect()
    }
}

/// What frames add up to.
#[derive(Debug)]
pub struct Known {
    latest: Gpus,
    /// Xids of all lives of the process, by card.
    xids: HashMap<String, HashMap<u32, u64>>,
    /// Calls of lives that are over.
    before: Vec<v1::DriverCall>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            latest: Gpus::none(),
            xids: HashMap::new(),
            before: Vec::new(),
        }
    }
}

impl Known {
    /// Takes a frame in. Whether it is a reading, not only a word on the driver.
    pub fn take(&mut self, frame: v1::NodeSample) -> bool {
        let driver = frame.driver.unwrap_or_default();
        let Some(own) = frame.self_ else {
            self.latest.driver = v1::Driver {
                version: std::mem::take(&mut self.latest.driver.version),
                cuda_version: std::mem::take(&mut self.latest.driver.cuda_version),
                ..driver
            };
            return false;
        };
        if frame.sequence == 0 {
            self.before = std::mem::take(&mut self.latest.calls);
        }
        let mut gpus = frame.gpus;
        for gpu in &mut gpus {
            let all = self.xids.entry(gpu.uuid.clone()).or_default();
            for (xid, count) in &gpu.xids {
                *all.entry(*xid).or_default() += count;
            }
            gpu.xids.clone_from(all);
        }
        // A card that was here and is not told of any more has not been taken out of the node while it runs.
        for was in &self.latest.gpus {
            if !gpus.iter().any(|gpu| gpu.uuid == was.uuid) {
                gpus.push(v1::Gpu {
                    state: v1::GpuState::Lost.into(),
                    xids: self.xids.get(&was.uuid).cloned().unwrap_or_default(),
                    uuid: was.uuid.clone(),
                    index: was.index,
                    minor: was.minor,
                    name: was.name.clone(),
                    pci_bus_id: was.pci_bus_id.clone(),
                    ..v1::Gpu::default()
                });
            }
        }
        self.latest = Gpus {
            driver,
            gpus,
            read: Instant::now(),
            calls: self.sum(own.calls),
            sample_seconds: own.sample_seconds,
            cost: (own.reader_resident_bytes, own.reader_cpu_seconds),
            count: self.latest.count + 1,
        };
        true
    }

    /// An Xid that the kernel's log told of, and the driver's events did not.
    pub fn xid(&mut self, uuid: &str, xid: u32) {
        let all = self.xids.entry(uuid.to_owned()).or_default();
        *all.entry(xid).or_default() += 1;
        for gpu in self.latest.gpus.iter_mut().filter(|gpu| gpu.uuid == uuid) {
            gpu.xids.clone_from(all);
        }
    }

    /// The driver is like this, whatever was read. Whether that is new.
    pub fn driver(&mut self, state: v1::DriverState, text: &str) -> bool {
        let is_new = self.latest.driver.state() != state || self.latest.driver.text != text;
        self.latest.driver.state = state.into();
        text.clone_into(&mut self.latest.driver.text);
        is_new
    }

    /// All of it.
    pub fn gpus(&self) -> Gpus {
        self.latest.clone()
    }

    fn sum(&self, now: Vec<v1::DriverCall>) -> Vec<v1::DriverCall> {
        let mut sum = now;
        for before in &self.before {
            match sum.iter_mut().find(|call| call.function == before.function) {
                Some(call) => {
                    call.count += before.count;
                    call.errors += before.errors;
                    call.seconds += before.seconds;
                    call.longest_seconds = call.longest_seconds.max(before.longest_seconds);
                }
                None => sum.push(before.clone()),
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sequence: u64, uuids: &[&str]) -> v1::NodeSample {
        let gpu = |uuid: &&str| v1::Gpu {
            uuid: (*uuid).to_owned(),
            state: v1::GpuState::Ok.into(),
            xids: HashMap::from([(79, 1)]),
            ..v1::Gpu::default()
        };
        v1::NodeSample {
            sequence,
            driver: Some(v1::Driver {
                state: v1::DriverState::Ok.into(),
                version: "580.95.05".into(),
                ..v1::Driver::default()
            }),
            gpus: uuids.iter().map(gpu).collect(),
            self_: Some(v1::SelfTelemetry {
                calls: vec![v1::DriverCall {
                    function: "f".into(),
                    count: sequence + 1,
                    ..v1::DriverCall::default()
                }],
                ..v1::SelfTelemetry::default()
            }),
            ..v1::NodeSample::default()
        }
    }

    #[test]
    fn xids_and_costs_add_up_over_the_lives_of_the_process() {
        let mut known = Known::default();
        assert!(known.take(reading(0, &["a"])) && known.take(reading(1, &["a"])));
        known.take(reading(0, &["a"]));
        let gpus = known.gpus();
        assert_eq!(gpus.aged()[0].xids, HashMap::from([(79, 3)]));
        assert_eq!(gpus.calls[0].count, 3, "two of the first life, one of the second");
        known.xid("a", 48);
        assert_eq!(known.gpus().aged()[0].xids, HashMap::from([(79, 3), (48, 1)]));
    }

    #[test]
    fn a_card_that_is_told_of_no_more_is_lost_and_comes_back() {
        let mut known = Known::default();
        known.take(reading(0, &["a", "b"]));
        known.take(reading(0, &["a"]));
        let gpus = known.gpus().aged();
        assert_eq!(
            (gpus[1].uuid.as_str(), gpus[1].state()),
            ("b", v1::GpuState::Lost)
        );
        known.take(reading(0, &["a", "b"]));
        assert_eq!(known.gpus().aged()[1].state(), v1::GpuState::Ok);
    }

    #[test]
    fn what_was_read_before_the_driver_hung_is_stale() {
        let mut known = Known::default();
        known.take(reading(0, &["a"]));
        let hung = v1::NodeSample {
            driver: Some(v1::Driver {
                state: v1::DriverState::Hung.into(),
                text: "a call has not come back".into(),
                ..v1::Driver::default()
            }),
            ..v1::NodeSample::default()
        };
        assert!(!known.take(hung), "no reading");
        let gpus = known.gpus();
        assert_eq!(gpus.driver.version, "580.95.05");
        assert_eq!(gpus.aged()[0].state(), v1::GpuState::Stale);
    }
}
