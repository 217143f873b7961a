//! Who holds a chunk, in terms of replicas.

use super::ReplicaSet;

/// The replicas whose node holds a chunk, and whether other nodes do as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Replicas on nodes that hold it.
    pub local: ReplicaSet,
    /// Whether a node without a replica holds it too: its disk can be had
    /// through a replica on another node only.
    pub is_held_elsewhere: bool,
}

impl Holders {
    /// Nothing is known: every replica is as good as any other.
    pub const UNKNOWN: Self = Self { local: ReplicaSet::ALL, is_held_elsewhere: false };
}
