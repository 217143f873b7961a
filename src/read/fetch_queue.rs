//! Queues segments in the scheduler: new ones, retries, and hedges.

use std::sync::Arc;

use super::Reader;
use super::fetch::{FetchStage, SegmentFetch};
use crate::buffer::size_class;
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

/// Queues a pending segment again, for any replica, if memory allows.
pub(super) fn requeue(
    reader: &Reader,
    scheduler: &mut Scheduler<Arc<SegmentFetch>>,
    fetch: &Arc<SegmentFetch>,
) {
    let mut state = fetch.state.lock();
    let pending = matches!(state.stage, FetchStage::Pending);
    if !pending || state.queue_key.is_some() || state.is_unwanted() {
        return;
    }
    if state.claim.is_none() {
        state.claim = reader.buffers.budget().claim(size_class(fetch.range.len()));
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

/// Queues a hedge for a late segment if memory allows. If not, the next check for late segments
/// tries again.
pub(super) fn enqueue_hedge(
    reader: &Reader,
    scheduler: &mut Scheduler<Arc<SegmentFetch>>,
    late: LateAttempt<Arc<SegmentFetch>>,
) {
    let fetch = &late.item;
    let cost = size_class(fetch.range.len());
    let mut state = fetch.state.lock();
    let left = fetch.file.candidates().minus(state.tried).and(late.candidates);
    let pending = matches!(state.stage, FetchStage::Pending);
    if !pending || left.is_empty() || state.queue_key.is_some() || state.is_unwanted() {
        return;
    }
    if state.claim.is_none() {
        state.claim = reader.buffers.budget().claim(cost);
    }
    if state.claim.is_none() {
        return scheduler.cancel_hedge(&late);
    }
    let want =
        SegmentRequest { is_hedge: true, ..segment_request(fetch, left, false, state.holders) };
    state.set_queued(scheduler.enqueue(want));
    drop(state);
    reader.replicas[late.replica].counters.record_slow();
    increment(&reader.counters.hedges);
}
