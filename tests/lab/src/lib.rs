//! The lab: a real multi-node Slurm on one machine.
//!
//! A lab has a controller, a login node and compute nodes. Each is a set of namespaces (network, UTS, mount, IPC,
//! PID) over one root file system per Slurm release, with a name and an address of its own on a bridge in a hub
//! namespace. munged, slurmctld and slurmd run in them as on a real cluster: default ports, default paths.
//! Nothing outside the cache folder, the state folder and those namespaces is touched, so that a lab is safe beside
//! an installed and running Slurm; node names carry the lab's id, because cgroup paths are machine-wide.
//!
//! ```text
//! machine ── hub (bridge, no way out)
//!              ├── ID-ctl     munged, slurmctld
//!              ├── ID-login   munged; where people submit
//!              ├── ID-n1 …    munged, slurmd; GPUs are stand-ins (opening one says ENXIO, or EPERM if not allowed)
//!              └── /home shared by all
//! ```
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use serve_lab::{Lab, LabSpec};
//! let lab = Lab::up(LabSpec::default())?; // goes away when dropped
//! let names = lab.login().command("alice", ["srun", "-N2", "hostname"]).run()?;
//! assert_eq!(names.lines().count(), 2);
//! # Ok(()) }
//! ```
//!
//! Everything here needs root and never leaves anything running behind a killed starter for long: the next
//! [`Lab::up`] and `lab down --all` remove labs whose starter is gone.

mod birth;
mod cache;
mod cgroup;
mod command;
mod conf;
mod daemons;
mod down;
mod lab;
mod network;
mod node;
mod process;
mod product;
mod rootfs;
mod running;
mod snapshot;
mod spec;
mod state;
mod vllm;
mod wait;

pub use cache::Cache;
pub use command::{Background, NodeCommand};
pub use down::{all, down, down_orphans};
pub use lab::Lab;
pub use node::Node;
pub use process::ProcessId;
pub use product::Product;
pub use rootfs::ensure_root;
pub use running::Running;
pub use snapshot::{Difference, Snapshot};
pub use spec::{LabSpec, On, Placed, Release, Source};
pub use state::{LabState, NodeState, Role, labs};
pub use vllm::ensure_vllm;
pub use wait::wait_for;

/// Ordinary users of every lab: name and uid. Each has a group of its own with the same number.
pub const USERS: [(&str, u32); 2] = [("alice", 2001), ("bob", 2002)];

/// A group of every lab that holds alice, not bob.
pub const MODELS_GROUP: (&str, u32) = ("models", 2100);

/// Where the lab's vLLM lies in a node (`bin/vllm`, `bin/python` with the `openai` client).
pub const VLLM: &str = "/opt/vllm";

/// Where the tiny model lies in a node.
pub const TINY_MODEL: &str = "/opt/models/tiny";
