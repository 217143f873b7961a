//! fanfs: one mount point over N mounts of the same data.
//!
//! Start reading in `docs/ARCHITECTURE.md`; the modules below are in the order
//! of its code map, and import only what stands further down.

pub mod backend;
pub mod buffer;
pub mod config;
pub mod scheduler;
pub mod telemetry;
pub mod volume;
