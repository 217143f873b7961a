//! By when a call ends.
//!
//! The deadline counts from when the call was made, and again from each time that its
//! turn came nearer or that the replica answered a part of it ([`Replica::moved`]). So a
//! long queue at a slow replica fails no call, and a call that hangs ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Replica, Ticket};
use crate::volume::{ReplicaId, ReplicaMap};

/// How long a call may go without progress.
#[derive(Clone, Copy, Debug)]
pub(in crate::fs) struct Term {
    /// When the call was made, or last had progress.
    pub(in crate::fs) since: Instant,
    pub(in crate::fs) deadline: Duration,
}

impl Term {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.deadline
    }

    pub(super) fn moved(&mut self, at: Option<Instant>) {
        self.since = at.map_or(self.since, |at| at.max(self.since));
    }
}

/// A replica that was asked and has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silent {
    pub(super) replica: ReplicaId,
    /// When it was asked.
    pub(super) asked: Instant,
    /// The call there, once it is queued.
    pub(super) ticket: Option<Ticket>,
}

impl Silent {
    pub(super) fn moved(&self, replicas: &ReplicaMap<Arc<Replica>>) -> Option<Instant> {
        self.ticket.and_then(|ticket| replicas[self.replica].moved(ticket))
    }
}
