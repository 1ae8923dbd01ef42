//! Limits of our own processes: guard and gateway need two descriptors for each request, the agent one for everybody who connects to it,
//! and the usual soft limit is 1024.

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

static BEFORE: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Raises the soft limit of open files to the hard one. Where that fails fewer connections are served at a time.
pub fn raise_descriptors() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let _ = BEFORE.set((soft, hard));
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
}

/// The limits that the job gave, for the engine: soft and hard.
pub fn descriptors_before() -> Option<(rlim_t, rlim_t)> {
    BEFORE.get().copied()
}
