//! Segments in memory that nobody waits for, in the order to give them up.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::fetch::{Fetch, Stage};
use crate::buffer::size_class;

/// What may be forgotten when memory is short: first what has been read, the
/// longest ago first, then what was fetched ahead, the oldest first.
#[derive(Default)]
pub(super) struct Cache {
    used: Mutex<VecDeque<Weak<Fetch>>>,
    ahead: Mutex<VecDeque<Weak<Fetch>>>,
}

/// Dead entries are swept out when a queue has grown to this length, and to
/// twice what was alive then.
const SWEEP_AT: usize = 1024;

impl Cache {
    /// A segment has been read to its end and is kept for others.
    pub(super) fn used(&self, fetch: &Arc<Fetch>) {
        push(&self.used, fetch);
    }

    /// A segment has arrived ahead of its reader.
    pub(super) fn arrived(&self, fetch: &Arc<Fetch>) {
        push(&self.ahead, fetch);
    }

    /// Forgets segments worth `bytes`, if there are so many.
    pub(super) fn evict(&self, bytes: u64) {
        let mut freed = 0;
        for queue in [&self.used, &self.ahead] {
            while freed < bytes {
                let Some(oldest) = queue.lock().pop_front() else { break };
                let Some(fetch) = oldest.upgrade() else { continue };
                // A request that waits for other parts keeps its own reference;
                // such a segment's memory would not come back.
                let evictable = matches!(fetch.state.lock().stage, Stage::Ready(_));
                if evictable && Arc::strong_count(&fetch) <= 2 {
                    freed += size_class(fetch.range.len());
                    fetch.file.forget(&fetch);
                }
            }
        }
    }
}

fn push(queue: &Mutex<VecDeque<Weak<Fetch>>>, fetch: &Arc<Fetch>) {
    let mut queue = queue.lock();
    if queue.len() >= SWEEP_AT && queue.len() == queue.capacity() {
        queue.retain(|entry| entry.strong_count() > 0);
    }
    queue.push_back(Arc::downgrade(fetch));
}
