//! Where this library's scenario is.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::SCENARIO_FILE;

/// The variable that names a scenario.
const VARIABLE: &str = "FAKE_NVML_SCENARIO";

/// The file that the environment names, else the one beside the library.
pub fn scenario() -> PathBuf {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return path.into();
    }
    let library = own_path().unwrap_or_default();
    // The program may go to another folder later.
    let library = library.canonicalize().unwrap_or(library);
    library.parent().unwrap_or(Path::new("")).join(SCENARIO_FILE)
}

/// The file that this very code was loaded from.
fn own_path() -> Option<PathBuf> {
    let here: *const c_void = (own_path as fn() -> Option<PathBuf>) as *const c_void;
    // SAFETY: an all-zero `Dl_info` is a valid value of this plain C struct.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only compares the address, and writes into the struct it is given.
    let found = unsafe { libc::dladdr(here, &mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name is a C string that the loader keeps for as long as this code is loaded; it is copied here.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_variable_it_is_beside_the_code() {
        let folder = std::env::current_exe().unwrap();
        assert_eq!(scenario().parent(), folder.parent());
    }
}
