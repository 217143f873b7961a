//! The results of content checks for one version of a file.

use std::sync::Arc;

use crate::volume::{AtomicReplicaSet, ReplicaSet};

/// The state of a file's content checks.
#[derive(Default)]
pub(super) struct ContentCheckState {
    /// A hash of the path and the version.
    pub(super) key: u128,
    /// Replicas with a compared segment, or with no need for one.
    pub(super) checked: AtomicReplicaSet,
    /// Replicas whose bytes differ from the deciding replica's; shared by all opens of the file
    /// version.
    pub(super) excluded: Arc<AtomicReplicaSet>,
}

impl ContentCheckState {
    /// Replicas whose bytes differ from the deciding replica's.
    pub(super) fn excluded(&self) -> ReplicaSet {
        self.excluded.get()
    }
}
