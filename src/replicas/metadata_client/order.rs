//! The order in which a call asks the replicas.

use std::sync::atomic::Ordering;

use super::{CallTarget, MetadataClient};
use crate::backend::Lane;
use crate::replicas::metadata_order::{self, LOAD_UNIT, OrderParams, ReplicaOrder};
use crate::volume::{ReplicaSet, VolumeMode};

impl MetadataClient {
    /// The replicas to ask, in order.
    pub fn replica_order(&self, target: CallTarget) -> ReplicaOrder {
        if let Some(only) = target.sole_replica {
            let others = target.fallback_replicas.iter().filter(|id| *id != only);
            return std::iter::once(only).chain(others).collect();
        }
        let mut order = self.usual_order(target);
        if let Some(first) = target.preferred {
            order.retain(|id| *id != first);
            order.insert(0, first);
        }
        // Replicas where calls about the object hang come last: one more would wait without a
        // thread.
        order.sort_by_key(|id| !self.replicas[*id].has_room_for(Lane::Metadata, &target.path_key));
        order
    }

    fn usual_order(&self, target: CallTarget) -> ReplicaOrder {
        let availability = self.replicas.availability();
        let usable = availability.for_calls(self.policy.mode);
        let times = target.pin.map_or(&self.latency, |pin| &self.pinned_latency[pin.rule]);
        let turn = times.calls.fetch_add(1, Ordering::Relaxed);
        if self.policy.mode == VolumeMode::Copies && target.pin.is_none() {
            let others = self.replicas.all().minus(usable);
            return usable.iter().chain(others.iter()).collect();
        }
        let order = metadata_order::replica_order(&OrderParams {
            latency_us: &|replica| times.latency_us(replica),
            idle_time: &|replica| times.idle_time(replica),
            unloaded_us: &|replica| times.unloaded_us(replica),
            in_flight: &|replica| self.load.in_flight(replica),
            // The times under a rule are without the wait for a thread.
            usual_load: &|replica| match target.pin {
                Some(_) => LOAD_UNIT,
                None => self.load.usual(replica),
            },
            all: self.replicas.all(),
            usable,
            suspects: availability.suspects,
            error_suspects: availability.error_suspects,
            pinned: target.pin.map_or(ReplicaSet::EMPTY, |pin| pin.replicas),
            path_hash: target.path_hash,
            call_number: turn,
        });
        if let Some(first) = order.first() {
            // Recorded before the answer, so that calls in between do not take the replica for
            // idle.
            times.record_use(*first);
        }
        order
    }
}
