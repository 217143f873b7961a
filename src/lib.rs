//! fanfs: one mount point over N mounts of the same data.
//!
//! This library is not a stable API. It exists for the program, its tests and its benchmarks, and
//! any version may change it. Items are public because one of these uses them.
//!
//! Start reading in `docs/ARCHITECTURE.md`, which describes the modules and follows a read through
//! them.

pub(crate) use fanfs_foundation::timeout;
pub use fanfs_foundation::{config, format, mount_table, survey, volume};
pub(crate) use fanfs_nfs::nfs;

pub mod backend;
pub mod bench;
pub mod buffer;
mod capabilities;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod explain;
pub mod fs;
pub mod fuse;
mod launcher;
mod memory_headroom;
pub mod metrics;
mod owned_path;
pub mod placement;
pub mod raw_replica;
pub mod read;
pub mod replicas;
pub mod scheduler;
pub mod simulate;
pub mod status;
mod sync;
pub mod telemetry;
pub mod verify;
