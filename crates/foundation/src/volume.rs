//! The basic types of all other modules: replicas, byte ranges, versions.
//!
//! A *volume* is one configuration file, one mount point and one set of *replicas*. A replica is
//! one underlying mount with a [`ReplicaId`]. Per-replica state is in a [`ReplicaMap`], indexed by
//! that id, so the number of replicas is a run-time value everywhere. Sets of replicas are
//! [`ReplicaSet`]s, which are cheap to copy.
//!
//! All other modules may import this one. It imports none and does no I/O.

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
