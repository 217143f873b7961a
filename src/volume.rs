//! The nouns that everything else speaks in: replicas, byte ranges, versions.
//!
//! A *volume* is one configuration file, one mount point and one set of
//! *replicas*; a replica is one underlying mount, known by its [`ReplicaId`].
//! Per-replica state lives in a [`ReplicaMap`], indexed by that id, so that the
//! number of replicas is a run-time number everywhere. Sets of replicas are
//! [`ReplicaSet`]s, small enough to copy.
//!
//! This module stands below all others and does no I/O, with these exceptions:
//! for `fanfs check` and for start-up, [`mount_table`] reads the kernel's mount table
//! and [`survey`] looks at the replicas' roots; [`fanfs_mounts`] asks the kernel about fanfs's
//! own mounts; [`sample`] finds a file for `fanfs doctor` and `fanfs bench`.

pub mod fanfs_mounts;
mod holders;
pub mod mount_table;
pub mod name;
mod range;
mod replica;
pub mod sample;
mod splitmix64;
pub mod survey;
mod version;

pub use holders::Holders;
pub use range::ByteRange;
pub use replica::{AtomicReplicaSet, MAX_REPLICAS, ReplicaId, ReplicaMap, ReplicaSet};
pub use splitmix64::splitmix64;
pub use version::{FileId, FileVersion, VolumeMode};
