//! Sets of events, and what was told.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper_sys::bindings::nvmlEventTypeXidCriticalError;

use crate::call::Answer;
use crate::handles::DeviceKey;
use crate::{ErrorCode, Scenario, Xid};

/// The bit of an Xid in a mask of events.
pub const XID: u64 = nvmlEventTypeXidCriticalError as u64;

/// All sets of events.
#[derive(Default)]
pub struct EventSets {
    next: usize,
    /// The events that each wants, by GPU.
    sets: BTreeMap<usize, BTreeMap<String, u64>>,
    /// GPUs and places in their lists.
    told: BTreeSet<(String, usize)>,
}

impl EventSets {
    /// A new one, that wants nothing yet.
    pub fn create(&mut self) -> usize {
        self.next += 1;
        self.sets.insert(self.next, BTreeMap::new());
        self.next
    }

    /// Wants events of a GPU.
    pub fn register(&mut self, set: usize, gpu: &str, types: u64) -> Answer {
        let wanted = self.sets.get_mut(&set).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        *wanted.entry(gpu.to_owned()).or_default() |= types;
        Ok(())
    }

    /// Ends one.
    pub fn free(&mut self, set: usize) -> Answer {
        self.sets
            .remove(&set)
            .map(drop)
            .ok_or(ErrorCode::INVALID_ARGUMENT)
    }

    /// Ends all, as a shutdown does.
    pub fn clear(&mut self) {
        self.sets.clear();
    }

    /// The earliest Xid between `since` and `now` that nobody was told of. None, and a GPU of the set is lost: that is told instead.
    pub fn next_due(
        &mut self,
        set: usize,
        scenario: &Scenario,
        since: f64,
        now: f64,
    ) -> Answer<Option<(DeviceKey, Xid)>> {
        let wanted = self.sets.get(&set).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        let gpus = || scenario.gpus.iter().filter(|gpu| wanted.contains_key(&gpu.uuid));
        let xids = gpus().filter(|gpu| wanted[&gpu.uuid] & XID != 0).flat_map(|gpu| {
            gpu.xids
                .iter()
                .enumerate()
                .map(move |(place, xid)| (gpu, place, xid))
        });
        let due = xids
            .filter(|(_, _, xid)| (since..=now).contains(&xid.at_s))
            .filter(|(gpu, place, _)| !self.told.contains(&(gpu.uuid.clone(), *place)))
            .min_by(|a, b| a.2.at_s.total_cmp(&b.2.at_s));
        match due {
            Some((gpu, place, xid)) => {
                self.told.insert((gpu.uuid.clone(), place));
                Ok(Some((DeviceKey::of(gpu), *xid)))
            }
            None if gpus().any(|gpu| gpu.lost) => Err(ErrorCode::GPU_IS_LOST),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpu;

    #[test]
    fn each_is_told_once_and_in_order() {
        let mut gpus = [Gpu::h100_nvl(0), Gpu::h100_nvl(1)];
        let xid = |at_s, xid| Xid {
            at_s,
            xid,
            ..Xid::default()
        };
        gpus[0].xids = vec![xid(2.0, 48), xid(9.0, 79)];
        gpus[1].xids = vec![xid(1.0, 63), xid(0.0, 13)];
        let mut scenario = Scenario::with_gpus(gpus);
        let mut sets = EventSets::default();
        let set = sets.create();
        for gpu in &scenario.gpus {
            sets.register(set, &gpu.uuid, XID).unwrap();
        }
        let told = |sets: &mut EventSets, scenario: &Scenario, now| {
            sets.next_due(set, scenario, 0.5, now)
                .map(|due| due.map(|(_, xid)| xid.xid))
        };
        assert_eq!(told(&mut sets, &scenario, 3.0), Ok(Some(63)));
        assert_eq!(told(&mut sets, &scenario, 3.0), Ok(Some(48)));
        assert_eq!(told(&mut sets, &scenario, 3.0), Ok(None));
        scenario.gpus[0].lost = true;
        assert_eq!(told(&mut sets, &scenario, 9.5), Ok(Some(79)));
        assert_eq!(told(&mut sets, &scenario, 9.5), Err(ErrorCode::GPU_IS_LOST));
    }
}
