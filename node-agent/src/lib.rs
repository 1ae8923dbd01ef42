//! slurm-serve: models served as a property of Slurm jobs.
//!
//! One library for the resident programs (`slurm-serve agent|step|gateway`) and for the user's command (`sserve`). Each module
//! is a room with one concern; data flows one way:
//!
//! ```text
//! hook -> rpc -> job -> serve -> step … ready -> catalog; and back: step -> serve -> catalog
//! ```
//!
//! `docs/architecture.md` walks through the life of one job.

pub mod agent;
pub mod catalog;
pub mod client;
pub mod clock;
pub mod config;
pub mod duration;
pub mod gateway;
pub mod generation;
pub mod guard_status;
pub mod handover;
pub mod http_client;
pub mod job;
pub mod kill_wait;
pub mod limits;
pub mod listing;
pub mod munge;
pub mod network;
pub mod peers;
pub mod pem;
pub mod plugin_file;
pub mod private_file;
pub mod rpc;
pub mod selftest;
pub mod serve;
pub mod service_manager;
pub mod slurm;
pub mod slurm_conf;
pub mod step;
pub mod telemetry;
