//! Queues segments in the scheduler: new ones, retries, and hedges.

use std::sync::Arc;
use std::time::Duration;

use super::Reader;
use super::fetch::{FetchStage, SegmentFetch};
use crate::buffer::{Reservation, size_class};
use crate::scheduler::{LateAttempt, Scheduler, SegmentRequest};
use crate::telemetry::counters::increment;
use crate::volume::{Holders, ReplicaSet};

/// A scheduler request for a segment, to be read from one of `candidates`.
pub(super) fn segment_request(
    fetch: &Arc<SegmentFetch>,
    candidates: ReplicaSet,
    ahead: bool,
    holders: Option<Holders>,
) -> SegmentRequest<Arc<SegmentFetch>> {
    let is_all_there_is = fetch.range.len() == fetch.file.version().size;
    SegmentRequest {
        item: Arc::clone(fetch),
        bytes: fetch.range.len(),
        is_readahead: ahead,
        candidates,
        holders: holders.unwrap_or(Holders::UNKNOWN),
        pinned: fetch.file.placement_hints().pinned,
        is_hedge: false,
        file_number: fetch.file.file_number(),
        start: fetch.range.start,
        open_on: if is_all_there_is { fetch.file.verified_replicas() } else { ReplicaSet::ALL },
    }
}

/// An attempt of this age gets a second one even if that exceeds the budget.
const OVERDRAW_AFTER: Duration = Duration::from_secs(1);

/// Memory for one more attempt at a segment, `age` after the last one began. It goes past waiting
/// reads, which wait for memory that the late attempt may hold. At most as much as is in flight
/// exceeds the budget, because an attempt gets one more at a time. Call it without holding a lock.
pub(super) fn claim_for_another_attempt(
    reader: &Reader,
    fetch: &SegmentFetch,
    age: Duration,
) -> Option<Reservation> {
    let cost = size_class(fetch.range.len());
    let overdraw = || (age >= OVERDRAW_AFTER).then(|| reader.buffers.budget().overdraw(cost));
    reader.claim_memory(cost).or_else(overdraw)
}

/// Queues a pending segment again, for any replica, at the cost of `claim`.
pub(super) fn requeue(
    reader: &Reader,
    scheduler: &mut Scheduler<Arc<SegmentFetch>>,
    fetch: &Arc<SegmentFetch>,
    claim: Option<Reservation>,
) {
    let mut state = fetch.state.lock();
    let pending = matches!(state.stage, FetchStage::Pending);
    if !pending || state.queue_key.is_some() || state.is_unwanted() {
        return;
    }
    if state.claim.is_none() {
        state.claim = claim;
    }
    if state.claim.is_none() {
        return;
    }
    state.tried = ReplicaSet::EMPTY;
    let want = SegmentRequest {
        is_hedge: true,
        ..segment_request(fetch, fetch.file.candidates(), false, state.holders)
    };
    state.set_queued(scheduler.enqueue(want));
    increment(&reader.counters.retries);
}

/// Queues a hedge for a late segment, at the cost of `claim`. If it cannot, the next check for late
/// segments tries again.
pub(super) fn enqueue_hedge(
    reader: &Reader,
    scheduler: &mut Scheduler<Arc<SegmentFetch>>,
    late: &LateAttempt<Arc<SegmentFetch>>,
    claim: Option<Reservation>,
) {
    let fetch = &late.item;
    let mut state = fetch.state.lock();
    let left = state.alternatives(&fetch.file).and(late.candidates);
    if !state.may_be_hedged() || left.is_empty() {
        return scheduler.cancel_hedge(late);
    }
    if state.claim.is_none() {
        state.claim = claim;
    }
    if state.claim.is_none() {
        return scheduler.cancel_hedge(late);
    }
    let want =
        SegmentRequest { is_hedge: true, ..segment_request(fetch, left, false, state.holders) };
    state.set_queued(scheduler.enqueue(want));
    drop(state);
    reader.replicas[late.replica].counters.record_slow();
    increment(&reader.counters.hedges);
}
