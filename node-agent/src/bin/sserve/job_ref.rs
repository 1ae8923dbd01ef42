//! Which job is meant, as people write it.

use std::str::FromStr;

use crate::failure::Failure;

/// A job: by its number, or as a task of an array or a component of a heterogeneous job, which only Slurm can turn into a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobRef {
    /// `123`, as agents know it.
    Raw(u32),
    /// `123_4` or `123+1`.
    Part(String),
}

impl FromStr for JobRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is no job; write its number (123), or 123_4 for a task of an array, 123+1 for a component"
            )
        };
        let number = |part: &str| match part.bytes().all(|b| b.is_ascii_digit()) {
            true => part.parse::<u32>().ok(),
            false => None,
        };
        if let Some((job, part)) = text.split_once(['_', '+']) {
            number(job).filter(|id| *id > 0).ok_or_else(bad)?;
            number(part).ok_or_else(bad)?;
            return Ok(Self::Part(text.to_owned()));
        }
        number(text).filter(|id| *id > 0).map(Self::Raw).ok_or_else(bad)
    }
}

impl std::fmt::Display for JobRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw(id) => write!(f, "{id}"),
            Self::Part(text) => f.write_str(text),
        }
    }
}

/// The job this process runs in, if it runs in one.
pub fn surrounding() -> Option<JobRef> {
    std::env::var("SLURM_JOB_ID").ok()?.parse().ok()
}

/// The job that was named, else the one this process runs in.
pub fn named_or_surrounding(named: Option<JobRef>, verb: &str) -> Result<JobRef, Failure> {
    named.or_else(surrounding).ok_or_else(|| {
        Failure::usage(format!(
            "which job? Outside a job it must be named: `sserve {verb} JOB` (`squeue --me` shows yours)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_parts_are_jobs_and_nothing_else_is() {
        assert_eq!("123".parse(), Ok(JobRef::Raw(123)));
        assert_eq!("123_4".parse(), Ok(JobRef::Part("123_4".into())));
        assert_eq!("123+0".parse(), Ok(JobRef::Part("123+0".into())));
        for bad in [
            "",
            "0",
            "-1",
            "+1",
            "12_",
            "_3",
            "12_x",
            "1 2",
            "12;rm",
            "99999999999",
            "12_3_4",
        ] {
            let said = bad.parse::<JobRef>().expect_err(bad);
            assert!(said.contains("no job") && !said.contains('\n'), "{said}");
        }
    }
}
