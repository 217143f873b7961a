//! Replicas that have been asked and have not answered.

use std::sync::Arc;
use std::time::Instant;

use crate::backend::{Replica, Ticket};
use crate::volume::{ReplicaId, ReplicaMap};

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
