//! Attempts of a call that have no answer yet.

use std::time::Instant;

use super::call_load::InFlightCall;
use crate::backend::Ticket;
use crate::replicas::Replicas;
use crate::volume::ReplicaId;

/// A replica that was asked and has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallAttempt {
    pub(super) replica: ReplicaId,
    pub(super) sent_at: Instant,
    /// The job on the replica's pool, once it is queued.
    pub(super) ticket: Option<Ticket>,
}

/// When a call was sent to a replica.
#[derive(Clone, Copy)]
pub(super) struct SentCall {
    pub(super) at: Instant,
    /// Whether it is a short call, and no other one was in flight to the replica.
    pub(super) is_alone: bool,
}

/// An attempt, counted as a call in flight.
pub(super) struct UnansweredAttempt {
    pub(super) attempt: CallAttempt,
    /// `None` if it does not compete with other calls.
    pub(super) _in_flight: Option<InFlightCall>,
}

impl CallAttempt {
    pub(super) fn last_progress(&self, replicas: &Replicas) -> Option<Instant> {
        self.ticket.and_then(|ticket| replicas[self.replica].last_progress(ticket))
    }
}
