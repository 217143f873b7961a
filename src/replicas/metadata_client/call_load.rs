//! The short metadata calls in flight to each replica. Others have threads of their own, or say
//! nothing about the time of a short one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::replicas::metadata_order::{LOAD_UNIT, smoothed_load};
use crate::volume::{ReplicaId, ReplicaMap};

/// The calls in flight to each replica now, and how many there usually are.
pub(super) struct CallLoad {
    in_flight: ReplicaMap<AtomicUsize>,
    /// In parts of [`LOAD_UNIT`].
    usual: ReplicaMap<AtomicU64>,
}

/// A call in flight, until dropped.
pub(super) struct InFlightCall {
    load: Arc<CallLoad>,
    replica: ReplicaId,
    /// Whether no other call was in flight to the replica when it was sent.
    pub(super) is_alone: bool,
}

impl CallLoad {
    pub(super) fn new(replicas: usize) -> Arc<Self> {
        Arc::new(Self {
            in_flight: ReplicaMap::from_fn(replicas, |_| AtomicUsize::new(0)),
            usual: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(LOAD_UNIT)),
        })
    }

    /// Counts a call that is about to be sent.
    pub(super) fn enter(self: &Arc<Self>, replica: ReplicaId) -> InFlightCall {
        let in_flight = self.in_flight[replica].fetch_add(1, Ordering::Relaxed) + 1;
        // A lost update loses only one sample.
        let usual = self.usual[replica].load(Ordering::Relaxed);
        self.usual[replica].store(smoothed_load(usual, in_flight), Ordering::Relaxed);
        InFlightCall { load: Arc::clone(self), replica, is_alone: in_flight == 1 }
    }

    pub(super) fn in_flight(&self, replica: ReplicaId) -> usize {
        self.in_flight[replica].load(Ordering::Relaxed)
    }

    pub(super) fn usual(&self, replica: ReplicaId) -> u64 {
        self.usual[replica].load(Ordering::Relaxed)
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.load.in_flight[self.replica].fetch_sub(1, Ordering::Relaxed);
    }
}
