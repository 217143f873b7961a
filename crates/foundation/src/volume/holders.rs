//! Which replicas' nodes hold a chunk.

use super::{ReplicaId, ReplicaSet};

/// How near the replicas are to a chunk, by degrees: local ones, those with a spare copy, others.
///
/// Which copy a gateway reads depends on the cluster. Gateways of HDFS read their own node's copy.
/// Those of Ceph read the primary copy, wherever the others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holders {
    /// The replicas on nodes with a copy that their gateway reads.
    pub local: ReplicaSet,
    /// The replicas on nodes with a copy that no gateway reads while the others are there.
    pub spare: ReplicaSet,
    /// Whether a node without a replica has a copy that is read. A read reaches that node's disk
    /// only through a replica on another node.
    pub is_held_elsewhere: bool,
}

impl Holders {
    /// Unknown placement: all replicas are equal.
    pub const UNKNOWN: Self = Self::local(ReplicaSet::ALL);

    /// Copies that are read, all on the nodes of these replicas.
    pub const fn local(local: ReplicaSet) -> Self {
        Self { local, spare: ReplicaSet::EMPTY, is_held_elsewhere: false }
    }

    /// The replica on the only node whose copy is read, if there is one.
    pub fn sole_holder(self) -> Option<ReplicaId> {
        let mut local = self.local.iter();
        let first = local.next().filter(|_| !self.is_held_elsewhere)?;
        local.next().is_none().then_some(first)
    }

    /// The nearest of `candidates`. A spare copy is read after the node of a local replica has
    /// failed; where the node that is read has no replica, it does not count.
    pub fn nearest(self, candidates: ReplicaSet) -> ReplicaSet {
        let local = candidates.and(self.local);
        let spare = candidates.and(self.spare);
        match (local.is_empty(), spare.is_empty()) {
            (false, _) => local,
            (true, false) if !self.is_held_elsewhere => spare,
            (true, _) => candidates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_candidates_are_local_then_spare_then_any() {
        let set = |ids: &[usize]| {
            ids.iter().fold(ReplicaSet::EMPTY, |set, id| set.with(ReplicaId::new(*id)))
        };
        let holders = Holders { spare: set(&[1]), ..Holders::local(set(&[0])) };
        assert_eq!(holders.nearest(set(&[0, 1, 2])), set(&[0]));
        assert_eq!(holders.nearest(set(&[1, 2])), set(&[1]));
        assert_eq!(holders.nearest(set(&[2, 3])), set(&[2, 3]));
        assert_eq!(Holders::UNKNOWN.nearest(set(&[2, 3])), set(&[2, 3]));
        assert_eq!(holders.sole_holder(), Some(ReplicaId::new(0)));
        let elsewhere = Holders { is_held_elsewhere: true, ..holders };
        assert_eq!(elsewhere.nearest(set(&[1, 2])), set(&[1, 2]));
        let two = Holders::local(set(&[0, 1]));
        for holders in [elsewhere, two, Holders::UNKNOWN, Holders::local(set(&[]))] {
            assert_eq!(holders.sole_holder(), None);
        }
    }
}
