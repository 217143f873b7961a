//! The file system through real FUSE mounts, in this process.
//!
//! Needs root, or fusermount3 and a readable /dev/fuse. The drop of a rig ends its mount, also
//! after a failed test.

mod appends;
mod changes;
mod compare;
mod content;
mod crowds;
mod exclusion;
mod exports;
mod exports_v4;
mod faults;
mod freshness;
mod health;
mod immutable;
mod listings;
mod locks;
mod memory;
mod moves;
mod names;
mod namespace;
mod objects;
mod open_reads;
mod passthrough;
mod placement;
mod progress;
mod second_faults;
mod silence;
mod small;
mod starts;
mod targets;
mod unopened;
mod writes;
