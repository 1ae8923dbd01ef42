//! The table.

mod agent;
mod catalog;
mod engine;
mod job;
mod node;
mod others;
mod runner;
mod slurm;

use super::row::{Group, Row};

/// All scenarios, in groups.
pub fn groups() -> [Group; 8] {
    [
        job::GROUP,
        slurm::GROUP,
        engine::GROUP,
        runner::GROUP,
        agent::GROUP,
        catalog::GROUP,
        node::GROUP,
        others::GROUP,
    ]
}

/// All scenarios.
pub fn all() -> impl Iterator<Item = &'static Row> {
    groups().into_iter().flat_map(|group| group.rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_there_twice() {
        let mut names = BTreeSet::new();
        for row in super::all() {
            assert!(names.insert(row.name), "{} is there twice", row.name);
        }
    }
}
