//! The names of attempts: `JOB.RESTART.ATTEMPT-RANDOM`.
//!
//! All attempts of one launch have JOB, RESTART and RANDOM in common; the first one's name is also the launch's own.

/// The generation of the first attempt of a new launch.
pub fn first(job_id: u32, restart_count: u32) -> String {
    format!("{job_id}.{restart_count}.1-{:016x}", rand::random::<u64>())
}

/// The generation of another attempt of the same launch. A text that is no generation comes back as it is.
pub fn of_attempt(generation: &str, attempt: u32) -> String {
    match parts(generation) {
        Some((job, _, random)) => format!("{job}.{attempt}-{random}"),
        None => generation.to_owned(),
    }
}

/// Do both name attempts of the same launch?
pub fn same_launch(one: &str, other: &str) -> bool {
    match (parts(one), parts(other)) {
        (Some(one), Some(other)) => (one.0, one.2) == (other.0, other.2),
        _ => one == other,
    }
}

/// `JOB.RESTART`, attempt, random part.
fn parts(generation: &str) -> Option<(&str, u32, &str)> {
    let (left, random) = generation.split_once('-')?;
    let (job, attempt) = left.rsplit_once('.')?;
    Some((job, attempt.parse().ok()?, random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_one_launch_have_names_of_their_own_and_know_each_other() {
        let first = first(123, 2);
        assert!(first.starts_with("123.2.1-"), "{first}");
        assert_eq!(of_attempt(&first, 1), first);
        let third = of_attempt(&first, 3);
        assert!(third.starts_with("123.2.3-") && third != first);
        assert!(same_launch(&first, &third) && same_launch(&third, &third));
        for other in ["123.1.1-00", "123.2.1-00", "", "nonsense"] {
            assert!(!same_launch(&first, other), "{other}");
        }
        assert_eq!(of_attempt("nonsense", 2), "nonsense");
    }
}
