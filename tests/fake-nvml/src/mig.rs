//! A GPU that is cut into slices.

use serde::{Deserialize, Serialize};

use crate::{Gpm, Memory};

/// MIG mode and what was made of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mig {
    /// Whether it is on.
    pub enabled: bool,
    /// Whether it will be, after the next reset. Absent: as now.
    pub pending: Option<bool>,
    /// How many instances there may be.
    pub max_devices: u32,
    /// Those that are, in order of their index. The index past the last answers "not found".
    pub instances: Vec<MigInstance>,
}

impl Default for Mig {
    fn default() -> Self {
        Self {
            enabled: false,
            pending: None,
            max_devices: 7,
            instances: Vec::new(),
        }
    }
}

/// One MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigInstance {
    /// `MIG-…`.
    pub uuid: String,
    /// As `NVIDIA H100 NVL MIG 1g.12gb`.
    pub name: String,
    /// The GPU instance.
    pub gi: u32,
    /// The compute instance within.
    pub ci: u32,
    /// Its own memory.
    pub memory: Memory,
    /// Slices of the GPU that the GPU instance has.
    pub gpu_slices: u32,
    /// Of those, the ones that compute here.
    pub compute_slices: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// What its performance monitors say. Absent: it has none.
    pub gpm: Option<Gpm>,
}
