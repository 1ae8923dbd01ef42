//! What a scenario does to calls, besides answering them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{ALL, ErrorCode, FUNCTIONS};

/// The faults of the whole library, or of one GPU.
#[derive(Clone, Copy)]
pub struct Faults<'a> {
    pub errors: &'a BTreeMap<String, ErrorCode>,
    pub delays_us: &'a BTreeMap<String, u64>,
    pub hangs: &'a [String],
}

impl Faults<'_> {
    /// Whether this function doesn't come back.
    pub fn hangs(&self, function: &str) -> bool {
        self.hangs.iter().any(|name| name == function || name == ALL)
    }

    /// How long this function takes.
    pub fn delay(&self, function: &str) -> Duration {
        let us = self.delays_us.get(function).or_else(|| self.delays_us.get(ALL));
        Duration::from_micros(us.copied().unwrap_or(0))
    }

    /// How this function fails.
    pub fn error(&self, function: &str) -> Option<ErrorCode> {
        self.errors
            .get(function)
            .or_else(|| self.errors.get(ALL))
            .copied()
    }

    /// The first name that is no function of this library: a typo would else make a test that tests nothing.
    pub fn unknown(&self) -> Option<&str> {
        let names = self.errors.keys().chain(self.delays_us.keys()).chain(self.hangs);
        names
            .map(String::as_str)
            .find(|name| *name != ALL && !FUNCTIONS.contains(name))
    }
}
