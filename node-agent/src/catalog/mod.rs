//! (to be filled)

pub mod watcher;
