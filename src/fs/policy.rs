//! How the file system behaves, as the daemon has configured it.

use std::time::Duration;

use super::cache_mode::CacheModePolicy;
use crate::replicas::request_deadline::Deadlines;
use crate::volume::{ReplicaId, VolumeMode};

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct FsPolicy {
    /// How the replicas relate.
    pub mode: VolumeMode,
    /// By when every call is answered.
    pub deadlines: Deadlines,
    /// How long one replica may take before the next is asked.
    pub attempt_deadline: Duration,
    /// How long the kernel may trust attributes.
    pub attribute_ttl: Duration,
    /// Who caches file data.
    pub cache_mode: CacheModePolicy,
    /// Whether the kernel is to read files from one replica by itself.
    pub passthrough: bool,
    /// Who carries out changes, where there may be any.
    pub write: Option<WritePolicy>,
    /// Who keeps the locks, where this machine's kernel does not.
    pub lock_replica: Option<ReplicaId>,
}

/// How changes are carried out.
#[derive(Clone, Copy, Debug)]
pub struct WritePolicy {
    /// By whom.
    pub replica: ReplicaId,
    /// By when one ends.
    pub deadlines: Deadlines,
    /// How long other replicas may show what was before.
    pub lag: Duration,
}
