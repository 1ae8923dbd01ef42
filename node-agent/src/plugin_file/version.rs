//! Slurm's version number, as Slurm itself packs it.

use std::fmt;
use std::str::FromStr;

/// A release of Slurm, `24.11.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlurmVersion {
    /// The year.
    pub major: u8,
    /// The month.
    pub minor: u8,
    /// The patch level; Slurm ignores it when it loads a SPANK plugin.
    pub micro: u8,
}

impl SlurmVersion {
    /// Slurm's SLURM_VERSION_NUMBER: a byte for each part, `0x180b05`.
    pub fn number(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor) << 8 | u32::from(self.micro)
    }

    /// The reverse of [`Self::number`].
    pub fn from_number(number: u32) -> Self {
        let [_, major, minor, micro] = number.to_be_bytes();
        Self { major, minor, micro }
    }

    /// Whether Slurm of this version loads a plugin stamped for `plugin` (`plugin.c`, mask `0xffff00`).
    pub fn loads(self, plugin: Self) -> bool {
        self.number() & 0xff_ff00 == plugin.number() & 0xff_ff00
    }
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

impl FromStr for SlurmVersion {
    type Err = String;

    /// Takes `24.11.5`, `24.11.5-1`, `24.11`, and what Slurm's commands print for `-V`: `slurm 24.11.5`, `slurm-wlm 22.05.8`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no version of Slurm: write it like 24.11.5");
        let word = text.split_whitespace().last().ok_or_else(wrong)?;
        let numbers = word.split(['-', '~', '+']).next().unwrap_or(word);
        let mut parts = numbers.split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u8>().map_err(|_| wrong())
        });
        let mut next = || parts.next();
        let version = Self {
            major: next().ok_or_else(wrong)??,
            minor: next().ok_or_else(wrong)??,
            micro: next().transpose()?.unwrap_or(0),
        };
        if version.major < 17 || !(1..=12).contains(&version.minor) {
            return Err(wrong());
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_version_is_read() {
        for (text, number) in [
            ("22.05.8", 0x16_0508),
            ("24.11.5", 0x18_0b05),
            ("26.05.5-1", 0x1a_0505),
            ("slurm-wlm 22.05.8\n", 0x16_0508),
            ("slurm 25.05.0-0rc1", 0x19_0500),
            ("24.11", 0x18_0b00),
        ] {
            let version: SlurmVersion = text.parse().unwrap();
            assert_eq!(version.number(), number, "{text}");
            assert_eq!(SlurmVersion::from_number(number), version);
        }
        for text in ["", "slurm", "24", "1.2.3", "24.13.1", "24.x"] {
            assert!(text.parse::<SlurmVersion>().is_err(), "{text}");
        }
        assert_eq!(SlurmVersion::from_number(0x16_0508).to_string(), "22.05.8");
    }

    #[test]
    fn the_patch_level_does_not_matter_and_the_rest_does() {
        let version = |text: &str| text.parse::<SlurmVersion>().unwrap();
        assert!(version("24.11.7").loads(version("24.11.0")));
        assert!(!version("25.05.0").loads(version("24.11.0")));
    }
}
