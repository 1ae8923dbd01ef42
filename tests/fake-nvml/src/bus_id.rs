//! Where on the PCI bus a GPU sits.

/// A PCI address, of whatever spelling: NVML takes `00000000:3B:00.0`, `0000:3b:00.0` and `3b:00.0` for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusId {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

impl BusId {
    /// Reads `[domain:]bus:device[.function]`, all in hexadecimal.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let (place, function) = text.split_once('.').unwrap_or((text, "0"));
        hex(function)?;
        let mut parts = place.rsplit(':');
        let device = hex(parts.next()?)?;
        let bus = hex(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), hex)?;
        parts.next().is_none().then_some(Self { domain, bus, device })
    }

    /// As NVML spells it.
    pub fn long(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// As NVML spelt it before domains had eight digits.
    pub fn legacy(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_the_same_place() {
        let place = BusId::parse("00000000:3B:00.0").unwrap();
        assert_eq!(BusId::parse("0000:3b:00.0"), Some(place));
        assert_eq!(BusId::parse("3b:00"), Some(place));
        assert_eq!(place.long(), "00000000:3B:00.0");
        assert_eq!(BusId::parse("0:0:3b:00.0"), None);
        assert_eq!(BusId::parse("GPU-1"), None);
    }
}
