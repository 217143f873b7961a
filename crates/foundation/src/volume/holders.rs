//! Which replicas' nodes hold a chunk.

use super::ReplicaSet;

/// The replicas whose nodes hold a chunk, and whether other nodes hold it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// The replicas on nodes that hold the chunk.
    pub local: ReplicaSet,
    /// Whether a node without a replica also holds it. A read reaches that node's disk only through
    /// a replica on another node.
    pub is_held_elsewhere: bool,
}

impl Holders {
    /// Unknown placement: all replicas are equal.
    pub const UNKNOWN: Self = Self { local: ReplicaSet::ALL, is_held_elsewhere: false };
}
