//! Comparing versions of engines, as Python packages write them (PEP 440).

/// Whether an engine that calls itself `have` is at least `wanted`. `0.32.0+cpu` counts as `0.32.0`; a release candidate or
/// development build comes before its release. A version that can't be read counts as new enough, and so does `0.1.dev…`,
/// which is what a vLLM built from a checkout without tags calls itself: this check must not refuse what it can't judge.
pub fn version_at_least(have: &str, wanted: &str) -> bool {
    let (Some(have), Some(wanted)) = (read(have), read(wanted)) else {
        return true;
    };
    if have.early && have.numbers == [0, 1] {
        return true;
    }
    let width = have.numbers.len().max(wanted.numbers.len());
    let padded = |v: &Version| -> Vec<u64> {
        v.numbers
            .iter()
            .copied()
            .chain(std::iter::repeat(0))
            .take(width)
            .collect()
    };
    match padded(&have).cmp(&padded(&wanted)) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => !have.early || wanted.early,
    }
}

/// Whether a recipe's `min_engine_version` can be read.
pub(crate) fn is_version(text: &str) -> bool {
    text.len() <= 32 && read(text).is_some_and(|v| !v.early)
}

struct Version {
    numbers: Vec<u64>,
    /// Before the release that the numbers name.
    early: bool,
}

fn read(text: &str) -> Option<Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let public = text.split('+').next().unwrap_or_default();
    let mut numbers = Vec::new();
    for part in public.split('.') {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = part.split_at_checked(digits)?;
        if number.is_empty() {
            // `.dev3`, `.post1`
            let early = rest.starts_with("dev") || rest.starts_with("rc");
            return (!numbers.is_empty() && (early || rest.starts_with("post")))
                .then_some(Version { numbers, early });
        }
        numbers.push(number.parse().ok()?);
        if !rest.is_empty() {
            // `0rc1`, `0a1`, `0b2`, `0-rc1`
            let rest = rest.trim_start_matches('-');
            let early = ["rc", "a", "b", "dev"].iter().any(|p| rest.starts_with(p));
            return early.then_some(Version { numbers, early });
        }
    }
    (!numbers.is_empty()).then_some(Version {
        numbers,
        early: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_packages_do() {
        for (have, wanted, enough) in [
            ("0.32.0+cpu", "0.17", true),
            ("0.17", "0.17.0", true),
            ("0.9.2", "0.17", false),
            ("0.17.1", "0.17.2", false),
            ("1.0", "0.99.9", true),
            ("0.17.0rc1", "0.17", false),
            ("0.17.0rc1", "0.16.9", true),
            ("0.17.1.dev3+gabc", "0.17.1", false),
            ("0.17.0.post1", "0.17.0", true),
            ("v0.17.0", "0.17", true),
            ("0.1.dev1+g1234567", "0.17", true),
            ("", "0.17", true),
            ("main", "0.17", true),
            ("99999999999999999999999", "0.17", true),
        ] {
            assert_eq!(version_at_least(have, wanted), enough, "{have} against {wanted}");
        }
    }
}
