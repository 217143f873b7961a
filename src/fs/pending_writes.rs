//! Reads and writes of one file, in the order in which they arrive.
//!
//! The kernel puts what is written through its page cache there first, and then sends the
//! write. It may drop those pages again before the write is answered: an open of the file, or
//! attributes that show a change, make it do so. A read that it sends then is younger than
//! the write. Answered with what was there before, it would fill the page cache with that,
//! and the write would come after it: readers would get old bytes after the write has
//! returned. So a read waits until the writes that arrived before it have ended.
//!
//! Writes past the page cache do not count: after those the kernel drops the pages itself.
//!
//! *Invariant:* a read is submitted only after all writes that arrived before it have ended,
//! or after its own deadline.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The writes of one file through the kernel's page cache that have not ended.
#[derive(Default)]
pub(super) struct PendingWrites {
    state: Mutex<PendingWritesState>,
    /// One has ended.
    ended: Notify,
}

#[derive(Default)]
struct PendingWritesState {
    /// So many have arrived.
    arrived_count: u64,
    in_flight: BTreeSet<u64>,
}

impl PendingWrites {
    /// One has arrived. Returns its number.
    pub(super) fn add(&self) -> u64 {
        let mut state = self.state.lock();
        state.arrived_count += 1;
        let number = state.arrived_count;
        state.in_flight.insert(number);
        number
    }

    /// One has ended.
    pub(super) fn remove(&self, number: u64) {
        self.state.lock().in_flight.remove(&number);
        self.ended.notify_waiters();
    }

    /// The end of the next one that ends.
    pub(super) fn next_end(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// The last write that is under way.
    pub(super) fn last_in_flight(&self) -> Option<u64> {
        self.state.lock().in_flight.last().copied()
    }

    /// Whether any write up to `last` is under way.
    pub(super) fn has_in_flight_until(&self, last: u64) -> bool {
        self.state.lock().in_flight.first().is_some_and(|first| *first <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_writes_before_it_and_for_none_after_it() {
        let arrivals = PendingWrites::default();
        assert_eq!(arrivals.last_in_flight(), None);
        let (first, second) = (arrivals.add(), arrivals.add());
        let last = arrivals.last_in_flight().unwrap();
        let third = arrivals.add();
        arrivals.remove(second);
        assert!(arrivals.has_in_flight_until(last));
        arrivals.remove(first);
        assert!(!arrivals.has_in_flight_until(last));
        assert_eq!(arrivals.last_in_flight(), Some(third));
    }
}
