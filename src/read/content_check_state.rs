//! What has been found out of the content of one version of a file.

use crate::volume::{AtomicReplicaSet, ReplicaSet};

/// What a file knows of the comparisons of its content.
#[derive(Default)]
pub(super) struct ContentCheckState {
    /// Stands for the path and the version.
    pub(super) key: u128,
    /// Replicas of which some segment has been compared, or need not be.
    pub(super) checked: AtomicReplicaSet,
    /// Replicas that have other bytes than the deciding one.
    pub(super) excluded: AtomicReplicaSet,
}

impl ContentCheckState {
    /// Replicas that have other bytes than the deciding one.
    pub(super) fn excluded(&self) -> ReplicaSet {
        self.excluded.get()
    }
}
