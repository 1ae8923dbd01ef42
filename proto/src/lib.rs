//! The gRPC contract of slurm-serve, package `slurm_serve.v1`.
//!
//! The `.proto` files beside this crate are the source; `src/generated/` is made from them and checked in, so that building needs
//! no protobuf compiler. `tests/generated.rs` makes it again and fails on a difference
//! (`UPDATE_GENERATED=1 cargo test -p slurm-serve-proto` writes it).

/// Version 1 of the contract.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    include!("generated/slurm_serve.v1.rs");
}

/// The encoded descriptors of all files, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// Metadata key of a call's munge credential over TCP; see `Catalog` in `catalog.proto`.
pub const MUNGE_METADATA: &str = "x-slurm-serve-munge";

/// Metadata key of the agent's proof that it is root; see `Catalog` in `catalog.proto`.
pub const PROOF_METADATA: &str = "x-slurm-serve-proof";
