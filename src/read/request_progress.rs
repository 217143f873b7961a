//! Requests that nothing moves any more.
//!
//! A deadline counts from when the request came, and again from each time that each
//! segment that it lacks came nearer. A segment comes nearer:
//!
//! - in the scheduler's queue, when a replica that may be sent it delivers another one:
//!   files take turns there, so its own turn comes. Where segments of its file are on
//!   their way, it is behind these: when one is delivered, or comes nearer;
//! - in a replica's pool or at its server, when the replica answers what was queued
//!   before it, or a part of it ([`crate::backend::Replica::last_progress`]).
//!
//! So a slow replica fails no request of a long queue, and an attempt that hangs ends its
//! request, whatever its replica delivers to others. A request that waits for memory
//! moves with each delivery, which frees some.

use std::sync::Arc;
use std::time::Instant;

use super::fetch::{FetchProgress, ReadRequest, SegmentFetch};
use super::{Reader, fetch_queue};
use crate::backend::Ticket;
use crate::replicas::request_deadline::DeadlineVerdict;
use crate::volume::ReplicaId;

impl Reader {
    /// Whether a request has waited for long enough.
    pub(super) fn is_expired(self: &Arc<Self>, request: &ReadRequest, now: Instant) -> bool {
        let parts = request.parts();
        let moved = match parts.is_empty() {
            true => self.scheduler.lock().last_delivery(self.replicas.all()),
            false => {
                let missing = parts.iter().filter(|part| part.data().is_none());
                // `None`, where one has not moved at all, is the least.
                missing.map(|part| self.last_progress(part)).min().flatten()
            }
        };
        request.record_progress(moved);
        if !request.with_deadline(|term| term.is_due(now)) {
            return false;
        }
        let of = parts.first().map(|part| part.file.candidates_with_failing());
        let silence = self.replicas.responsiveness(of.unwrap_or(self.replicas.all()), now);
        match request.with_deadline(|term| term.check(now, || silence)) {
            DeadlineVerdict::Wait => false,
            DeadlineVerdict::Retry => {
                self.retry_parts(&parts);
                false
            }
            DeadlineVerdict::Expired => true,
        }
    }

    /// Has the segments that are not here sent to replicas that they were sent to before.
    fn retry_parts(self: &Arc<Self>, parts: &[Arc<SegmentFetch>]) {
        let mut dispatches = Vec::new();
        let mut scheduler = self.scheduler.lock();
        for fetch in parts.iter().filter(|fetch| fetch.data().is_none()) {
            fetch_queue::requeue(self, &mut scheduler, fetch);
        }
        scheduler.schedule(&mut self.replicas.lock_health(), Instant::now(), &mut dispatches);
        drop(scheduler);
        self.dispatch(dispatches);
    }

    /// When a segment that is not here last came nearer.
    fn last_progress(&self, fetch: &Arc<SegmentFetch>) -> Option<Instant> {
        let FetchProgress { dispatched_at: sent_on, tickets: queued, queued_for: awaited } =
            fetch.progress();
        let at = |(replica, ticket)| self.replicas[replica].last_progress(ticket);
        let in_pools = queued.into_iter().filter_map(at).max();
        let in_queue = awaited.and_then(|(replicas, since)| {
            let moved = match tickets_in_pools(fetch) {
                before if before.is_empty() => self.scheduler.lock().last_delivery(replicas),
                before => {
                    before.into_iter().filter_map(at).max().max(*fetch.file.last_delivery.lock())
                }
            };
            moved.filter(|at| *at > since)
        });
        sent_on.max(in_pools).max(in_queue)
    }
}

/// The attempts in the replicas' pools at segments of the same file that are not here.
fn tickets_in_pools(fetch: &SegmentFetch) -> Vec<(ReplicaId, Ticket)> {
    let Some(known) = fetch.segments() else { return Vec::new() };
    let segments: Vec<_> = known.lock().iter().map(Arc::clone).collect();
    let missing = segments.iter().filter(|fetch| fetch.data().is_none());
    missing.flat_map(|fetch| fetch.progress().tickets).collect()
}
