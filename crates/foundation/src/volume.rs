//! The nouns that everything else speaks in: replicas, byte ranges, versions.
//!
//! A *volume* is one configuration file, one mount point and one set of
//! *replicas*; a replica is one underlying mount, known by its [`ReplicaId`].
//! Per-replica state lives in a [`ReplicaMap`], indexed by that id, so that the
//! number of replicas is a run-time number everywhere. Sets of replicas are
//! [`ReplicaSet`]s, small enough to copy.
//!
//! This module is below all others and does no I/O.

mod holders;
pub mod path_serde;
mod range;
mod replica;
mod shell_word;
mod splitmix64;
mod version;

pub use holders::Holders;
pub use range::ByteRange;
pub use replica::{AtomicReplicaSet, MAX_REPLICAS, ReplicaId, ReplicaMap, ReplicaSet};
pub use shell_word::shell_word;
pub use splitmix64::splitmix64;
pub use version::{FileId, FileVersion, VolumeMode};
