//! fanfs: one mount point over N mounts of the same data.
//!
//! Start reading in `docs/ARCHITECTURE.md`, which has the modules in the order
//! in which a read goes through them.

pub mod backend;
pub mod bench;
pub mod buffer;
pub mod capabilities;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod explain;
pub mod format;
pub mod fs;
pub mod fuse;
pub mod launcher;
pub mod memory_headroom;
pub mod metrics;
pub mod placement;
pub mod read;
pub mod scheduler;
pub mod simulate;
mod sync;
pub mod telemetry;
pub mod verify;
pub mod volume;
