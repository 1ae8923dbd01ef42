//! Samples of the performance monitors: only the moment is kept, the scenario knows the rest.

use std::collections::BTreeMap;

use crate::ErrorCode;
use crate::call::Answer;

/// What a sample was taken of, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The GPU.
    pub gpu: String,
    /// The GPU instance, of MIG.
    pub gi: Option<u32>,
    /// When.
    pub at: f64,
}

/// All samples.
#[derive(Default)]
pub struct Samples {
    next: usize,
    taken: BTreeMap<usize, Option<Taken>>,
}

impl Samples {
    /// Room for one.
    pub fn alloc(&mut self) -> usize {
        self.next += 1;
        self.taken.insert(self.next, None);
        self.next
    }

    /// Takes it.
    pub fn take(&mut self, sample: usize, taken: Taken) -> Answer {
        let place = self.taken.get_mut(&sample).ok_or(ErrorCode::INVALID_ARGUMENT)?;
        *place = Some(taken);
        Ok(())
    }

    /// One that was taken.
    pub fn get(&self, sample: usize) -> Answer<Taken> {
        let taken = self.taken.get(&sample).cloned().flatten();
        taken.ok_or(ErrorCode::INVALID_ARGUMENT)
    }

    /// Ends one.
    pub fn free(&mut self, sample: usize) -> Answer {
        self.taken
            .remove(&sample)
            .map(drop)
            .ok_or(ErrorCode::INVALID_ARGUMENT)
    }
}
