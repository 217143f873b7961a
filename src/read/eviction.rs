//! Segments in memory that no request waits for, in the order of eviction.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::fetch::{EvictionQueue, FetchStage, SegmentFetch};
use crate::buffer::size_class;

/// Segments to evict when memory is short: those that have been read, and those that were fetched
/// ahead or read in part. Each queue evicts its oldest first.
#[derive(Default)]
pub(super) struct EvictionQueues {
    consumed: EvictionFifo,
    readahead: EvictionFifo,
}

#[derive(Default)]
struct EvictionFifo(Mutex<VecDeque<(Instant, Weak<SegmentFetch>)>>);

/// The least length at which dead entries are removed from a queue. They are removed each time the
/// queue's allocation is full.
const SWEEP_AT: usize = 1024;

/// Unread segments of this age are evicted for other readahead too. A reader that uses its window
/// well takes less time to reach its end.
const STALE_AFTER: Duration = Duration::from_secs(5);

impl EvictionQueues {
    /// Adds a segment that has been read to its end and is kept for other readers.
    pub(super) fn add_consumed(&self, fetch: &Arc<SegmentFetch>) {
        self.consumed.push(fetch, EvictionQueue::Consumed);
    }

    /// Adds a segment that arrived ahead of its reader, or that was read in part.
    pub(super) fn add_readahead(&self, fetch: &Arc<SegmentFetch>) {
        self.readahead.push(fetch, EvictionQueue::Readahead);
    }

    /// Evicts segments that have been read until `bytes` are freed. Returns the bytes freed, which
    /// may be fewer.
    pub(super) fn evict_consumed(&self, bytes: u64) -> u64 {
        self.consumed.evict(bytes, |_| true)
    }

    /// The same for segments that arrived ahead of their readers.
    pub(super) fn evict_readahead(&self, bytes: u64) -> u64 {
        self.readahead.evict(bytes, |_| true)
    }

    /// Evicts segments that have been read, and then unread ones older than [`STALE_AFTER`].
    pub(super) fn evict_stale(&self, bytes: u64, now: Instant) {
        let freed = self.evict_consumed(bytes);
        let stale = |since| now.saturating_duration_since(since) >= STALE_AFTER;
        self.readahead.evict(bytes.saturating_sub(freed), stale);
    }
}

impl EvictionFifo {
    fn push(&self, fetch: &Arc<SegmentFetch>, listed: EvictionQueue) {
        {
            let mut state = fetch.state.lock();
            let here = matches!(state.stage, FetchStage::Ready(_));
            if !here || state.eviction_queue >= listed {
                return;
            }
            state.eviction_queue = listed;
        }
        let mut queue = self.0.lock();
        if queue.len() >= SWEEP_AT && queue.len() == queue.capacity() {
            queue.retain(|(_, entry)| entry.strong_count() > 0);
        }
        queue.push_back((Instant::now(), Arc::downgrade(fetch)));
    }

    fn evict(&self, bytes: u64, may: impl Fn(Instant) -> bool) -> u64 {
        let mut freed = 0;
        let mut left = self.0.lock().len();
        while freed < bytes && left > 0 {
            left -= 1;
            let oldest = {
                let mut queue = self.0.lock();
                match queue.front() {
                    Some((since, entry)) if may(*since) || entry.strong_count() == 0 => {}
                    _ => break,
                }
                queue.pop_front()
            };
            let Some((since, entry)) = oldest else { break };
            let Some(fetch) = entry.upgrade() else { continue };
            // A request that waits for other parts keeps a reference to this segment. Its memory
            // would not be freed now, but will be later.
            if Arc::strong_count(&fetch) <= 2 {
                freed += size_class(fetch.range.len());
                fetch.forget();
            } else {
                self.0.lock().push_back((since, entry));
            }
        }
        freed
    }
}
