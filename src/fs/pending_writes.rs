//! Reads and writes of one file, in the order in which they arrive.
//!
//! For a write through its page cache, the kernel first copies the bytes to the cache, and then
//! sends the write. It may drop those pages before the write is answered, because of an open of the
//! file, or attributes that show a change. The kernel then sends a read that comes after the write.
//! If the answer had the bytes from before the write, they would fill the page cache. Readers would
//! get old bytes after the write has returned. So a read waits until the writes that arrived before
//! it have ended.
//!
//! Writes that bypass the page cache do not count: after those the kernel drops the pages itself.
//! [`super::stale_pages`] handles a read that arrives before the write, although it was sent after
//! the bytes were copied.
//!
//! *Invariant:* a read is submitted only after all writes that arrived before it have ended, or
//! after its own deadline.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::stale_pages::CachedReads;
use crate::backend::RequestingThread;
use crate::volume::ByteRange;

/// The writes of one file through the kernel's page cache that have not ended.
#[derive(Default)]
pub(super) struct PendingWrites {
    state: Mutex<PendingWritesState>,
    /// Notified when a write ends.
    ended: Notify,
}

#[derive(Default)]
struct PendingWritesState {
    /// Writes that have arrived so far.
    arrived_count: u64,
    in_flight: BTreeSet<u64>,
    /// The reads since the last write that the kernel has copied into its pages.
    reads: CachedReads,
}

impl PendingWrites {
    /// Registers a write. `copied` is the range that the kernel has copied into its pages for it.
    /// Returns its number, and whether a read may have overtaken it.
    pub(super) fn add(&self, copied: Option<ByteRange>) -> (u64, bool) {
        let mut state = self.state.lock();
        state.arrived_count += 1;
        let number = state.arrived_count;
        state.in_flight.insert(number);
        let thread = RequestingThread::current();
        let overtaken = copied.is_some_and(|range| state.reads.take_overtaking(range, thread));
        (number, overtaken)
    }

    /// Registers a read. Returns the number of the last write in flight.
    pub(super) fn add_read(&self, range: ByteRange) -> Option<u64> {
        let mut state = self.state.lock();
        state.reads.record(range, RequestingThread::current());
        state.in_flight.last().copied()
    }

    /// An earlier daemon has served the file, so its reads are unknown.
    pub(super) fn forget_reads(&self) {
        self.state.lock().reads = CachedReads::unknown();
    }

    /// Ends a write.
    pub(super) fn remove(&self, number: u64) {
        self.state.lock().in_flight.remove(&number);
        self.ended.notify_waiters();
    }

    /// Completes when the next write ends.
    pub(super) fn next_end(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Whether any write up to `last` is in flight.
    pub(super) fn has_in_flight_until(&self, last: u64) -> bool {
        self.state.lock().in_flight.first().is_some_and(|first| *first <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_only_for_earlier_writes() {
        let arrivals = PendingWrites::default();
        let range = ByteRange::at(0, 1);
        let arrive = || arrivals.add(None).0;
        assert_eq!(arrivals.add_read(range), None);
        let (first, second) = (arrive(), arrive());
        let last = arrivals.add_read(range).unwrap();
        let third = arrive();
        arrivals.remove(second);
        assert!(arrivals.has_in_flight_until(last));
        arrivals.remove(first);
        assert!(!arrivals.has_in_flight_until(last));
        assert_eq!(arrivals.add_read(range), Some(third));
    }
}
