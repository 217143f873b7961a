//! The file system through real FUSE mounts, in this process.
//!
//! Needs root, or fusermount3 and a readable /dev/fuse. Every mount is ended by
//! its rig's drop, also when a test fails.

#[path = "fuse/appends.rs"]
mod appends;
#[path = "fuse/changes.rs"]
mod changes;
#[path = "fuse/compare.rs"]
mod compare;
#[path = "fuse/content.rs"]
mod content;
#[path = "fuse/crowds.rs"]
mod crowds;
#[path = "fuse/exclusion.rs"]
mod exclusion;
#[path = "fuse/faults.rs"]
mod faults;
#[path = "fuse/freshness.rs"]
mod freshness;
#[path = "fuse/health.rs"]
mod health;
#[path = "fuse/locks.rs"]
mod locks;
#[path = "fuse/memory.rs"]
mod memory;
#[path = "fuse/moves.rs"]
mod moves;
#[path = "fuse/names.rs"]
mod names;
#[path = "fuse/namespace.rs"]
mod namespace;
#[path = "fuse/objects.rs"]
mod objects;
#[path = "fuse/passthrough.rs"]
mod passthrough;
#[path = "fuse/placement.rs"]
mod placement;
#[path = "fuse/progress.rs"]
mod progress;
#[path = "fuse/recorder.rs"]
mod recorder;
#[path = "fuse/rig.rs"]
mod rig;
#[path = "fuse/silence.rs"]
mod silence;
#[path = "fuse/small.rs"]
mod small;
#[path = "fuse/targets.rs"]
mod targets;
#[path = "fuse/writes.rs"]
mod writes;
