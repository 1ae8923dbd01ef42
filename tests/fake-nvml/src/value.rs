//! A number that may change as time goes by.

use serde::{Deserialize, Serialize};

/// A reading, over the seconds since the library was first initialised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Written")]
pub enum Value {
    /// Always the same.
    Number(f64),
    /// From each time on another value; `null` (and the time before the first step) is "not supported".
    Steps {
        /// Times, ascending, and what is read from then on.
        steps: Vec<(f64, Option<f64>)>,
    },
    /// A counter.
    Ramp {
        /// What it counts from.
        from: f64,
        /// How much it grows each second.
        per_s: f64,
    },
}

impl Value {
    /// From each of these times on, that value.
    pub fn steps(steps: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self::Steps {
            steps: steps
                .into_iter()
                .map(|(from, value)| (from, Some(value)))
                .collect(),
        }
    }

    /// A counter that starts at `from` and grows by `per_s` each second.
    pub fn ramp(from: f64, per_s: f64) -> Self {
        Self::Ramp { from, per_s }
    }

    /// What is read at `now`.
    pub fn at(&self, now: f64) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Steps { steps } => steps.iter().rev().find(|(from, _)| *from <= now)?.1,
            Self::Ramp { from, per_s } => Some(from + per_s * now),
        }
    }

    /// The mean between two moments: what a measurement by two samples finds.
    pub fn mean(&self, start: f64, end: f64) -> Option<f64> {
        let Self::Steps { steps } = self else {
            return self.at(f64::midpoint(start, end));
        };
        if end <= start {
            return self.at(end);
        }
        let mut turns: Vec<f64> = steps.iter().map(|(from, _)| *from).collect();
        turns.retain(|from| *from > start && *from < end);
        turns.insert(0, start);
        turns.push(end);
        let mut sum = 0.0;
        for turn in turns.windows(2) {
            sum += self.at(turn[0])? * (turn[1] - turn[0]);
        }
        Some(sum / (end - start))
    }
}

/// A [`Value`] as it stands in a file, not yet checked.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Written {
    Number(f64),
    Steps { steps: Vec<(f64, Option<f64>)> },
    Ramp { from: f64, per_s: f64 },
}

impl TryFrom<Written> for Value {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(number) => Ok(Self::Number(number)),
            Written::Ramp { from, per_s } => Ok(Self::Ramp { from, per_s }),
            Written::Steps { steps } if steps.is_sorted_by(|a, b| a.0 < b.0) => Ok(Self::Steps { steps }),
            Written::Steps { steps } => Err(format!("the times of steps must ascend: {steps:?}")),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_from_their_time_on() {
        let value: Value = serde_json::from_str(r#"{"steps": [[1, 10], [2, null], [3, 30]]}"#).unwrap();
        assert_eq!(value.at(0.9), None);
        assert_eq!(value.at(1.0), Some(10.0));
        assert_eq!(value.at(2.5), None);
        assert_eq!(value.at(99.0), Some(30.0));
    }

    #[test]
    fn a_counter_grows() {
        let value: Value = serde_json::from_str(r#"{"from": 100, "per_s": 2.5}"#).unwrap();
        assert_eq!(value.at(4.0), Some(110.0));
        assert_eq!(value.mean(2.0, 6.0), Some(110.0));
    }

    #[test]
    fn the_mean_of_steps_weighs_their_time() {
        let value = Value::steps([(0.0, 0.0), (3.0, 100.0)]);
        assert_eq!(value.mean(2.0, 4.0), Some(50.0));
        assert_eq!(value.mean(0.0, 4.0), Some(25.0));
        assert_eq!(value.mean(3.5, 3.5), Some(100.0));
    }

    #[test]
    fn steps_out_of_order_are_refused() {
        assert!(serde_json::from_str::<Value>(r#"{"steps": [[2, 0], [1, 1]]}"#).is_err());
        assert!(serde_json::from_str::<Value>(r#"{"from": 1, "per_sec": 2}"#).is_err());
    }
}
