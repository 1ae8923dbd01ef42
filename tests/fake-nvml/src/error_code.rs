//! The codes by which NVML says no.

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An `nvmlReturn_t` other than success. In JSON its name without `NVML_ERROR_`, or, for one that has no name here, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub nvmlReturn_t);

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl ErrorCode {
            $(#[doc = concat!("`NVML_ERROR_", stringify!($name), "`.")]
            pub const $name: Self = Self($code);)*

            /// The name, without `NVML_ERROR_`.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// The code of that name.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// What `nvmlErrorString` says.
            pub(crate) fn text(self) -> &'static std::ffi::CStr {
                match self.0 {
                    0 => c"Success",
                    $($code => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

codes! {
    UNINITIALIZED = 1, c"Uninitialized";
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    NOT_SUPPORTED = 3, c"Not Supported";
    NO_PERMISSION = 4, c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    TIMEOUT = 10, c"Timeout";
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    GPU_IS_LOST = 15, c"GPU is lost";
    RESET_REQUIRED = 16, c"GPU requires reset";
    OPERATING_SYSTEM = 17, c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    IN_USE = 19, c"In use by another client";
    MEMORY = 20, c"Insufficient Memory";
    NO_DATA = 21, c"No data";
    INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    ARGUMENT_VERSION_MISMATCH = 25, c"Version mismatch of an argument";
    NOT_READY = 27, c"System is not in ready state";
    GPU_NOT_FOUND = 28, c"No GPUs found on system";
    UNKNOWN = 999, c"Unknown Error";
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(nvmlReturn_t),
            Name(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(0) => Err(de::Error::custom("0 is success, not an error")),
            Written::Number(code) => Ok(Self(code)),
            Written::Name(name) => Self::named(name.strip_prefix("NVML_ERROR_").unwrap_or(&name))
                .ok_or_else(|| de::Error::custom(format!("{name} is no error of NVML's"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read() {
        let read = |text| serde_json::from_str::<ErrorCode>(text);
        assert_eq!(read(r#""GPU_IS_LOST""#).unwrap(), ErrorCode::GPU_IS_LOST);
        assert_eq!(read(r#""NVML_ERROR_TIMEOUT""#).unwrap(), ErrorCode::TIMEOUT);
        assert_eq!(read("30").unwrap(), ErrorCode(30));
        assert!(
            read(r#""GPU_IS_LOTS""#)
                .unwrap_err()
                .to_string()
                .contains("GPU_IS_LOTS")
        );
        assert!(read("0").is_err());
    }

    #[test]
    fn they_are_written_as_they_are_read() {
        for code in [ErrorCode::NOT_SUPPORTED, ErrorCode::UNKNOWN, ErrorCode(30)] {
            let text = serde_json::to_string(&code).unwrap();
            assert_eq!(serde_json::from_str::<ErrorCode>(&text).unwrap(), code);
        }
    }
}
