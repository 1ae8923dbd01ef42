//! The plugin as a file: which Slurm it is stamped for, and what this host's Slurm would make of it.
//!
//! Slurm loads a SPANK plugin only if the file's symbol `plugin_version` carries its own major and minor version
//! (`plugin.c`, mask `0xffff00`). Apart from that number one build fits every release, so the number is written into the file
//! ([`stamp`]). [`check`] follows the way that Slurm takes: plugstack.conf, its includes, the file, its version, its libraries.

mod check;
mod elf;
mod host;
mod plugstack;
mod version;

pub use check::{DEFAULT_SOCKET, Finding, Level, Report, Stacked, check};
pub use elf::{PluginFileError, needed, plugin_name, product_version, read_version, stamp};
pub use host::{HostPaths, host_paths, host_version};
pub use plugstack::{PlugstackError, StackLine, read as read_plugstack};
pub use version::SlurmVersion;
