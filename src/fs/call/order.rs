//! Which replicas a call asks, in which order.

use std::sync::atomic::Ordering;

use super::{Caller, Spot};
use crate::backend::Lane;
use crate::read::Usable;
use crate::scheduler::metadata::{self, Choice};
use crate::volume::{Mode, ReplicaId, ReplicaSet};

impl Caller {
    /// Whom to ask, the first first.
    pub(super) fn order(&self, spot: Spot) -> Vec<ReplicaId> {
        if let Some(only) = spot.only {
            let others = spot.otherwise.iter().filter(|id| *id != only);
            return std::iter::once(only).chain(others).collect();
        }
        let mut order = self.usual_order(spot);
        if let Some(first) = spot.first {
            order.retain(|id| *id != first);
            order.insert(0, first);
        }
        // Where calls about the object hang, one more would wait without a thread.
        order.sort_by_key(|id| !self.replicas[*id].has_room_for(Lane::Metadata, &spot.about));
        order
    }

    fn usual_order(&self, spot: Spot) -> Vec<ReplicaId> {
        let Usable { replicas: usable, suspect, refusing } = self.reader.usable();
        let times = spot.pin.map_or(&self.times, |pin| &self.pinned_times[pin.rule]);
        let turn = times.calls.fetch_add(1, Ordering::Relaxed);
        if self.policy.mode == Mode::Copies && spot.pin.is_none() {
            let ejected = self.replicas.all().minus(usable);
            return usable.iter().chain(ejected.iter()).collect();
        }
        let order = metadata::order(&Choice {
            times: &times.all(),
            idle: &times.idle(),
            usable,
            suspect,
            refusing,
            pinned: spot.pin.map_or(ReplicaSet::EMPTY, |pin| pin.replicas),
            affinity: spot.affinity,
            turn,
        });
        if let Some(first) = order.first() {
            // Before it answers, so that calls that come meanwhile ask others.
            times.asks(*first);
        }
        order
    }
}
