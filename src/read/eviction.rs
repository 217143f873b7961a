//! Segments in memory that nobody waits for, in the order to give them up.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::fetch::{EvictionQueue, FetchStage, SegmentFetch};
use crate::buffer::size_class;

/// What may be forgotten when memory is short: what has been read, and what was
/// fetched ahead or is read in part; of each what came first.
#[derive(Default)]
pub(super) struct EvictionQueues {
    consumed: EvictionFifo,
    readahead: EvictionFifo,
}

#[derive(Default)]
struct EvictionFifo(Mutex<VecDeque<(Instant, Weak<SegmentFetch>)>>);

/// Dead entries are swept out when a queue has grown to this length, and to
/// twice what was alive then.
const SWEEP_AT: usize = 1024;

/// What lies there unread for so long is given up for other readahead as well:
/// longer than a reader in good use of his window takes to get to its end.
const STALE_AFTER: Duration = Duration::from_secs(5);

impl EvictionQueues {
    /// A segment has been read to its end and is kept for others.
    pub(super) fn add_consumed(&self, fetch: &Arc<SegmentFetch>) {
        self.consumed.push(fetch, EvictionQueue::Consumed);
    }

    /// A segment has arrived ahead of its reader, or he has read a part of it.
    pub(super) fn add_readahead(&self, fetch: &Arc<SegmentFetch>) {
        self.readahead.push(fetch, EvictionQueue::Readahead);
    }

    /// Forgets segments worth `bytes` that have been read, if there are so many;
    /// returns how many bytes that was.
    pub(super) fn evict_consumed(&self, bytes: u64) -> u64 {
        self.consumed.evict(bytes, |_| true)
    }

    /// The same with those that have arrived ahead.
    pub(super) fn evict_readahead(&self, bytes: u64) -> u64 {
        self.readahead.evict(bytes, |_| true)
    }

    /// The same with those that have been read, and then those that nobody has
    /// come for in a long time.
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
            // A request that waits for other parts keeps its own reference; such
            // a segment's memory would not come back now, but will later.
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
