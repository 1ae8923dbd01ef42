//! What the performance monitors of a Hopper and later count.

use std::collections::BTreeMap;
use std::ffi::CStr;

use serde::{Deserialize, Serialize};

use crate::Value;

/// Metrics between two samples: the mean of each over that time, in percent (traffic in MiB each second). One that is absent isn't
/// supported, by itself alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpm {
    /// 1: of the time, that the graphics engine was busy.
    pub graphics_util: Option<Value>,
    /// 2: of the multiprocessors, that had work.
    pub sm_util: Option<Value>,
    /// 3: of the warps that could be there, those that were.
    pub sm_occupancy: Option<Value>,
    /// 5: of the time, that tensor cores were busy.
    pub any_tensor_util: Option<Value>,
    /// 10: of the memory's bandwidth, what was used.
    pub dram_bw_util: Option<Value>,
    /// Any other, by its number.
    pub others: BTreeMap<u32, Value>,
}

impl Gpm {
    /// The metric of that number.
    pub(crate) fn metric(&self, id: u32) -> Option<&Value> {
        let named = match id {
            1 => &self.graphics_util,
            2 => &self.sm_util,
            3 => &self.sm_occupancy,
            5 => &self.any_tensor_util,
            10 => &self.dram_bw_util,
            _ => &None,
        };
        named.as_ref().or_else(|| self.others.get(&id))
    }
}

/// The short name of a metric, where one is known here.
pub fn short_name(id: u32) -> Option<&'static CStr> {
    match id {
        1 => Some(c"GR UTIL"),
        2 => Some(c"SM UTIL"),
        3 => Some(c"SM OCCUP"),
        5 => Some(c"ANY TENS"),
        10 => Some(c"DRAM BW"),
        _ => None,
    }
}
