//! Fields: readings by number, and for some by scope.

use nvml_wrapper_sys::bindings::field_id::*;

use crate::{Gpu, Value};

/// The scope that stands for all links together.
const ALL_SCOPES: u32 = u32::MAX;

/// The name of a field in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldKey {
    id: u32,
    scope: Option<u32>,
}

impl FieldKey {
    /// Reads `ID`, `ID@SCOPE` or `ID@all`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, scope) = match text.split_once('@') {
            None => (text, None),
            Some((id, "all")) => (id, Some(ALL_SCOPES)),
            Some((id, scope)) => (id, Some(scope.parse().ok()?)),
        };
        let id = id.parse().ok()?;
        Some(Self { id, scope })
    }
}

/// The reading of a field: the scenario's own word for it, else what it says elsewhere.
pub fn reading(gpu: &Gpu, id: u32, scope: u32) -> Option<&Value> {
    let named = |wanted: FieldKey| {
        let mut fields = gpu.fields.iter();
        fields.find_map(|(key, value)| (FieldKey::parse(key) == Some(wanted)).then_some(value))
    };
    let scoped = FieldKey {
        id,
        scope: Some(scope),
    };
    named(scoped)
        .or_else(|| named(FieldKey { id, scope: None }))
        .or_else(|| {
            // Other scopes of these are other things: the module's power, the memory's.
            if scope == 0 { derived(gpu, id) } else { None }
        })
}

fn derived(gpu: &Gpu, id: u32) -> Option<&Value> {
    let value = match id {
        NVML_FI_DEV_MEMORY_TEMP => &gpu.temperature.memory,
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => &gpu.energy_mj,
        NVML_FI_DEV_PCIE_REPLAY_COUNTER => &gpu.pcie.replays,
        NVML_FI_DEV_REMAPPED_COR => &gpu.remapped_rows.corrected,
        NVML_FI_DEV_REMAPPED_UNC => &gpu.remapped_rows.uncorrected,
        NVML_FI_DEV_REMAPPED_PENDING => &gpu.remapped_rows.pending,
        NVML_FI_DEV_REMAPPED_FAILURE => &gpu.remapped_rows.failure,
        NVML_FI_DEV_POWER_AVERAGE => &gpu.power.average,
        NVML_FI_DEV_POWER_INSTANT => &gpu.power.instant,
        NVML_FI_DEV_POWER_MIN_LIMIT => &gpu.power.min_limit,
        NVML_FI_DEV_POWER_MAX_LIMIT => &gpu.power.max_limit,
        NVML_FI_DEV_POWER_DEFAULT_LIMIT => &gpu.power.default_limit,
        NVML_FI_DEV_POWER_CURRENT_LIMIT => &gpu.power.enforced_limit,
        NVML_FI_DEV_POWER_REQUESTED_LIMIT => &gpu.power.limit,
        _ => &None,
    };
    value.as_ref()
}

/// Whether the driver gives this field in 32 bits; others have 64.
pub fn is_short(id: u32) -> bool {
    matches!(
        id,
        NVML_FI_DEV_MEMORY_TEMP
            | NVML_FI_DEV_PCIE_REPLAY_COUNTER
            | NVML_FI_DEV_REMAPPED_COR..=NVML_FI_DEV_REMAPPED_FAILURE
            | NVML_FI_DEV_POWER_AVERAGE..=NVML_FI_DEV_POWER_REQUESTED_LIMIT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_has_its_own_word() {
        let mut gpu = Gpu::h100_nvl(0);
        gpu.fields = [
            ("138".to_owned(), 1.into()),
            ("138@2".to_owned(), 2.into()),
            ("138@all".to_owned(), 3.into()),
            ("82".to_owned(), 99.into()),
        ]
        .into();
        let read = |id, scope| reading(&gpu, id, scope).and_then(|value| value.at(0.0));
        assert_eq!(read(138, 0), Some(1.0));
        assert_eq!(read(138, 2), Some(2.0));
        assert_eq!(read(138, u32::MAX), Some(3.0));
        assert_eq!(read(82, 0), Some(99.0));
        assert_eq!(read(185, 0), Some(62_000.0));
        assert_eq!(read(185, 1), None);
        assert_eq!(read(7, 0), None);
    }
}
