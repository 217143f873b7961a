//! Who gives up memory when it is short, and how much of it readahead may have.
//!
//! In this order: what has been read and is kept for others; what was to be
//! fetched ahead and has not been sent, the least urgent first, because that
//! costs nothing but its place in the queue; what has arrived ahead of its
//! reader, the oldest first. So who waits for data does not wait for memory that
//! others hold for data that nobody waits for, however the readers came to it.

use std::sync::Arc;

use super::Reader;
use super::fetch::SegmentFetch;
use super::segment_map::SegmentMap;
use super::split::{self, Piece};
use crate::buffer::{Budget, Buffer, BufferPool, Reservation, size_class};
use crate::scheduler::Scheduler;
use crate::volume::ByteRange;

impl Reader {
    /// What a request for `range` needs where nothing of it is known.
    pub(super) fn memory_cost(&self, range: ByteRange) -> u64 {
        split::split_range(range, std::iter::empty::<(ByteRange, ())>(), self.policy.segment)
            .iter()
            .map(missing_cost)
            .sum()
    }

    /// How long a window may be now: the readers share what the budget has for
    /// readahead. None where it would be shorter than what the reader asks for at
    /// once (`request` bytes): so many readers keep the replicas busy without,
    /// and who is lucky to get one would be served before the others.
    pub(super) fn readahead_window(&self, request: u64) -> u64 {
        let readers = self.active_readers.count() as u64;
        let share = self.policy.budget / 2 / readers;
        if share < request { 0 } else { self.policy.readahead_max.min(share) }
    }

    /// Gives memory to those who wait in line for it.
    pub fn serve_waiters(&self) {
        let budget = self.buffers.budget();
        budget.grant_waiters();
        let shortage = budget.shortage();
        if shortage > 0 {
            self.reclaim(shortage);
            budget.grant_waiters();
        }
    }

    /// The budget that pays for all memory of size.
    pub fn budget(&self) -> &Budget {
        self.buffers.budget()
    }

    /// Buffers that the budget has paid for.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Claims `bytes` for something else than a read, ahead of the reads that wait; data that
    /// no read waits for makes room. Call it with nothing locked.
    pub fn claim_memory(&self, bytes: u64) -> Option<Reservation> {
        self.budget().claim_past_waiters(bytes).or_else(|| {
            self.reclaim(bytes);
            self.budget().claim_past_waiters(bytes)
        })
    }

    /// A buffer for `len` bytes, beyond the budget where that is short: only for what
    /// something else bounds. `None` where the system has no memory. Call it with nothing
    /// locked.
    pub fn allocate_buffer(&self, len: u64) -> Option<Buffer> {
        let class = size_class(len);
        let claim = self.claim_memory(class).unwrap_or_else(|| self.budget().overdraw(class));
        self.buffers.allocate(len as usize, claim).ok()
    }

    /// Frees `bytes`, if there are so many that nobody waits for.
    pub(super) fn reclaim(&self, bytes: u64) {
        let mut freed = self.eviction_queues.evict_consumed(bytes);
        if freed < bytes {
            freed += self.drop_unsent(bytes - freed);
        }
        if freed < bytes {
            self.eviction_queues.evict_readahead(bytes - freed);
        }
    }

    /// Gives up what was to be fetched ahead and has not been sent; returns how
    /// many bytes that was.
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
            // The file's segments first, so that nobody joins it meanwhile.
            let known = fetch.segments();
            let mut known = known.as_ref().map(|known| known.lock());
            if abandon_unsent(&fetch, known.as_deref_mut(), &mut self.scheduler.lock()) {
                freed += size_class(fetch.range.len());
            }
        }
        freed
    }
}

/// Ends a segment that has not been sent and that nobody waits for, if it is
/// one. Takes its file's segments, locked, if the file is open.
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
