//! The configuration of the file system.

use std::time::Duration;

use super::cache_mode::CacheModePolicy;
use crate::replicas::request_deadline::Deadlines;
use crate::volume::{ReplicaId, VolumeMode};

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct FsPolicy {
    /// How the replicas relate.
    pub mode: VolumeMode,
    /// Deadlines of all calls other than changes.
    pub deadlines: Deadlines,
    /// How long one replica may take before the next is asked.
    pub attempt_deadline: Duration,
    /// How long the kernel may trust names and attributes.
    pub attribute_ttl: Duration,
    /// How long the kernel may trust that a name does not exist.
    pub missing_name_ttl: Duration,
    /// Whether nothing in the volume changes while it is mounted.
    pub immutable: bool,
    /// Whether the kernel or the application's memory holds file data.
    pub cache_mode: CacheModePolicy,
    /// Whether the kernel reads files from one replica by itself.
    pub passthrough: bool,
    /// The rules for changes; `None` for a read-only volume.
    pub write: Option<WritePolicy>,
    /// The replica that keeps the locks; `None` if this machine's kernel keeps them.
    pub lock_replica: Option<ReplicaId>,
}

/// How changes are carried out.
#[derive(Clone, Copy, Debug)]
pub struct WritePolicy {
    /// The write replica.
    pub replica: ReplicaId,
    /// Deadlines of a change.
    pub deadlines: Deadlines,
    /// How long after a change other replicas may still show the old state.
    pub lag: Duration,
}
