//! Durations in configuration, written as people write them: `"10s"`, `"1m 30s"`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Reads `"10s"`.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(|e| {
        serde::de::Error::custom(format!(
            "{text:?} is no duration ({e}); write \"10s\", \"5m\", \"250ms\""
        ))
    })
}

/// Writes `"10s"`.
pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&humantime::format_duration(*value).to_string())
}
