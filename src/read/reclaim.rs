//! Frees memory when it is short, and limits the memory of readahead.
//!
//! The order is:
//! 1. segments that have been read and are kept for others;
//! 2. readahead that has not been dispatched, the least urgent first, because it costs only its
//!    place in the queue;
//! 3. segments that have arrived ahead of their reader, the oldest first.
//!
//! So a request for data never waits for memory that holds data without a waiting request.

use std::sync::Arc;

use super::Reader;
use super::fetch::SegmentFetch;
use super::segment_map::SegmentMap;
use super::split::{self, Piece};
use crate::buffer::{Budget, Buffer, BufferPool, Reservation, size_class};
use crate::scheduler::Scheduler;
use crate::volume::ByteRange;

impl Reader {
    /// The memory that a request for `range` needs if none of it is known.
    pub(super) fn memory_cost(&self, range: ByteRange) -> u64 {
        split::split_range(range, std::iter::empty::<(ByteRange, ())>(), self.policy.segment)
            .iter()
            .map(missing_cost)
            .sum()
    }

    /// The longest readahead window at present: the readers share half of the budget. 0 if the
    /// share would be smaller than the read itself (`request` bytes). So many readers keep the
    /// replicas busy without readahead, and the few readers with a window would be served before
    /// the others.
    pub(super) fn readahead_window(&self, request: u64) -> u64 {
        let readers = self.active_readers.count() as u64;
        let share = self.policy.budget / 2 / readers;
        if share < request { 0 } else { self.policy.readahead_max.min(share) }
    }

    /// Grants memory to the requests that wait for it, and reclaims some if it is short.
    pub fn serve_waiters(&self) {
        let budget = self.buffers.budget();
        budget.grant_waiters();
        let shortage = budget.shortage();
        if shortage > 0 {
            self.reclaim(shortage);
            budget.grant_waiters();
        }
    }

    /// The budget that pays for all large memory.
    pub fn budget(&self) -> &Budget {
        self.buffers.budget()
    }

    /// The pool of buffers that the budget pays for.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Claims `bytes` for other purposes than a read, ahead of waiting reads. Evicts data that no
    /// read waits for if necessary. Call it without holding a lock.
    pub fn claim_memory(&self, bytes: u64) -> Option<Reservation> {
        self.budget().claim_past_waiters(bytes).or_else(|| {
            self.reclaim(bytes);
            self.budget().claim_past_waiters(bytes)
        })
    }

    /// A buffer for `len` bytes. It exceeds the budget if that is short, so use it only where
    /// something else limits the memory. `None` if the system has no memory. Call it without
    /// holding a lock.
    pub fn allocate_buffer(&self, len: u64) -> Option<Buffer> {
        let class = size_class(len);
        let claim = self.claim_memory(class).unwrap_or_else(|| self.budget().overdraw(class));
        self.buffers.allocate(len as usize, claim).ok()
    }

    /// Frees `bytes` of memory, or as much as no request waits for.
    pub(super) fn reclaim(&self, bytes: u64) {
        let mut freed = self.eviction_queues.evict_consumed(bytes);
        if freed < bytes {
            freed += self.drop_unsent(bytes - freed);
        }
        if freed < bytes {
            self.eviction_queues.evict_readahead(bytes - freed);
        }
    }

    /// Abandons readahead that has not been dispatched; returns the bytes freed.
    fn drop_unsent(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        let unsent: Vec<Arc<SegmentFetch>> = {
            let scheduler = self.scheduler.lock();
            let mut found = 0;
            let enough = |fetch: &Arc<SegmentFetch>| {
                let more = found < bytes;
                found += size_class(fetch.range.len());
                more
            };
            scheduler
                .queued_readahead()
                .map(|want| &want.item)
                .cloned()
                .take_while(enough)
                .collect()
        };
        for fetch in unsent {
            // Lock the file's segments first, so that no request joins it in between.
            let known = fetch.segments();
            let mut known = known.as_ref().map(|known| known.lock());
            if abandon_unsent(&fetch, known.as_deref_mut(), &mut self.scheduler.lock()) {
                freed += size_class(fetch.range.len());
            }
        }
        freed
    }
}

/// Ends a segment if it has no attempt in flight and no request waits for it; returns whether it
/// did. `segments` is its file's locked map, if the file is open.
pub(super) fn abandon_unsent(
    fetch: &Arc<SegmentFetch>,
    segments: Option<&mut SegmentMap<SegmentFetch>>,
    scheduler: &mut Scheduler<Arc<SegmentFetch>>,
) -> bool {
    let abandoned = fetch.abandon();
    if abandoned {
        if let Some(want) = fetch.state.lock().queue_key.take() {
            scheduler.cancel(want);
        }
        segments.into_iter().for_each(|segments| segments.forget(fetch));
    }
    abandoned
}

pub(super) fn missing_cost<K>(piece: &Piece<K>) -> u64 {
    match piece {
        Piece::Missing(part) => size_class(part.len()),
        Piece::Known(..) => 0,
    }
}
