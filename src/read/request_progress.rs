//! Detects requests that make no progress.
//!
//! A deadline counts from the arrival of the request, and again from each time that each of its
//! missing segments came nearer. A segment comes nearer:
//!
//! - in the scheduler's queue, when a replica to which it may be dispatched delivers another
//!   segment: files take turns there, so its own turn comes. If segments of its file are in flight,
//!   it queues behind these, and comes nearer when one of them is delivered or comes nearer;
//! - in a replica's pool or at its server, when the replica answers an earlier job, or a part of it
//!   ([`crate::backend::Replica::last_progress`]).
//!
//! So a slow replica fails no request in a long queue. A hung attempt ends its request, no matter
//! what its replica delivers to others. A request that waits for memory makes progress with each
//! delivery, which frees memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{FetchProgress, ReadRequest, SegmentFetch};
use super::{Reader, fetch_queue};
use crate::backend::Ticket;
use crate::replicas::request_deadline::DeadlineVerdict;
use crate::volume::ReplicaId;

impl Reader {
    /// Whether a request has passed its deadline.
    pub(super) fn is_expired(self: &Arc<Self>, request: &ReadRequest, now: Instant) -> bool {
        let parts = request.parts();
        let moved = match parts.is_empty() {
            true => self.scheduler.lock().last_delivery(self.replicas.all()),
            false => {
                let missing = parts.iter().filter(|part| part.data().is_none());
                // `None`, for a segment without any progress, is the minimum.
                missing.map(|part| self.last_progress(part)).min().flatten()
            }
        };
        request.record_progress(moved);
        if !request.with_deadline(|term| term.is_due(now)) {
            return false;
        }
        let of = parts.first().map(|part| part.file.candidates_with_failing());
        let since = request.with_deadline(|term| term.last_progress());
        let silence = self.replicas.responsiveness(of.unwrap_or(self.replicas.all()), since, now);
        match request.with_deadline(|term| term.check(now, || silence)) {
            DeadlineVerdict::Wait => false,
            DeadlineVerdict::Retry => {
                self.retry_parts(&parts);
                false
            }
            DeadlineVerdict::Expired => true,
        }
    }

    /// Queues the pending segments again, for replicas that were already asked too.
    fn retry_parts(self: &Arc<Self>, parts: &[Arc<SegmentFetch>]) {
        let missing = parts.iter().filter(|fetch| fetch.data().is_none());
        let paid = missing.map(|fetch| {
            (fetch, fetch_queue::claim_for_another_attempt(self, fetch, Duration::MAX))
        });
        let paid: Vec<_> = paid.collect();
        let mut dispatches = Vec::new();
        let mut scheduler = self.scheduler.lock();
        for (fetch, claim) in paid {
            fetch_queue::requeue(self, &mut scheduler, fetch, claim);
        }
        scheduler.schedule(&mut self.replicas.lock_health(), Instant::now(), &mut dispatches);
        drop(scheduler);
        self.dispatch(dispatches);
    }

    /// When a pending segment last came nearer.
    fn last_progress(&self, fetch: &Arc<SegmentFetch>) -> Option<Instant> {
        let FetchProgress { dispatched_at: sent_on, tickets: queued, queued_for: awaited } =
            fetch.progress();
        let at = |(replica, ticket)| self.replicas[replica].last_progress(ticket);
        let in_pools = queued.into_iter().filter_map(at).max();
        let in_queue = awaited.and_then(|(replicas, since)| {
            let moved = match tickets_in_pools(fetch) {
                before if before.is_empty() => self.scheduler.lock().last_delivery(replicas),
                before => {
                    before.into_iter().filter_map(at).max().max(fetch.file.last_delivery.get())
                }
            };
            moved.filter(|at| *at > since)
        });
        sent_on.max(in_pools).max(in_queue)
    }
}

/// The tickets of all attempts at pending segments of the same file.
fn tickets_in_pools(fetch: &SegmentFetch) -> Vec<(ReplicaId, Ticket)> {
    let Some(known) = fetch.segments() else { return Vec::new() };
    let segments: Vec<_> = known.lock().iter().map(Arc::clone).collect();
    let missing = segments.iter().filter(|fetch| fetch.data().is_none());
    missing.flat_map(|fetch| fetch.progress().tickets).collect()
}
