//! Reads and writes of one file, in the order in which they arrive.
//!
//! The kernel puts what is written through its page cache there first, and then sends the
//! write. It may drop those pages again before the write is answered: an open of the file, or
//! attributes that show a change, make it do so. A read that it sends then is younger than
//! the write. Answered with what was there before, it would fill the page cache with that,
//! and the write would come after it: readers would get old bytes after the write has
//! returned. So a read waits until the writes that arrived before it have ended.
//!
//! Writes past the page cache do not count: after those the kernel drops the pages itself. A
//! read that arrives before the write, and is younger all the same, is dealt with by
//! [`super::stale_pages`].
//!
//! *Invariant:* a read is submitted only after all writes that arrived before it have ended,
//! or after its own deadline.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::stale_pages::CachedReads;
use super::write_gate::WriteGate;
use super::{Fs, task};
use crate::backend::RequestingThread;
use crate::volume::ByteRange;

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
    /// The reads since the last write that the kernel has copied into its pages.
    reads: CachedReads,
}

/// A write that has arrived. It ends when this is dropped.
pub(super) struct PendingWrite {
    gate: Arc<WriteGate>,
    number: u64,
    /// What it writes, where a read may have overtaken it.
    overtaken: Option<ByteRange>,
}

/// How often a read that waits looks whether its caller was killed.
const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl PendingWrites {
    /// A write has arrived; `copied`: what the kernel has copied into its pages for it. Returns
    /// its number, and whether a read may have overtaken it.
    fn add(&self, copied: Option<ByteRange>) -> (u64, bool) {
        let mut state = self.state.lock();
        state.arrived_count += 1;
        let number = state.arrived_count;
        state.in_flight.insert(number);
        let thread = RequestingThread::current();
        let overtaken = copied.is_some_and(|range| state.reads.take_overtaking(range, thread));
        (number, overtaken)
    }

    /// A read has arrived. Returns the last write that is under way.
    fn add_read(&self, range: ByteRange) -> Option<u64> {
        let mut state = self.state.lock();
        state.reads.record(range, RequestingThread::current());
        state.in_flight.last().copied()
    }

    /// An earlier daemon has served the file: what was read of it is not known.
    pub(super) fn forget_reads(&self) {
        self.state.lock().reads = CachedReads::unknown();
    }

    fn remove(&self, number: u64) {
        self.state.lock().in_flight.remove(&number);
        self.ended.notify_waiters();
    }

    /// Whether any write up to `last` is under way.
    fn has_in_flight_until(&self, last: u64) -> bool {
        self.state.lock().in_flight.first().is_some_and(|first| *first <= last)
    }
}

impl WriteGate {
    /// A write of `range` has arrived through a handle of a file in the kernel's page cache.
    /// `is_copied`: the kernel has copied the bytes into its pages for it.
    pub(super) fn track_write(self: &Arc<Self>, range: ByteRange, is_copied: bool) -> PendingWrite {
        let (number, is_overtaken) = self.pending_writes.add(is_copied.then_some(range));
        let overtaken = is_overtaken.then_some(range);
        PendingWrite { gate: Arc::clone(self), number, overtaken }
    }
}

impl PendingWrite {
    /// Ends it. Returns what it wrote, where pages of it in the kernel's cache may be older.
    pub(super) fn end(self) -> Option<ByteRange> {
        self.overtaken
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.gate.pending_writes.remove(self.number);
    }
}

impl Fs {
    /// Waits until the writes of the file have ended that arrived before a read, which arrived
    /// at `since` and is of `range`.
    pub(super) async fn wait_for_earlier_writes(
        self: &Arc<Self>,
        gate: &Arc<WriteGate>,
        range: ByteRange,
        since: Instant,
    ) {
        let Some(last) = gate.pending_writes.add_read(range) else { return };
        task::hold_until_reply(self.client.register_waiting());
        let gate = Arc::clone(gate);
        let requesting_thread = RequestingThread::current();
        let until = since + self.policy.deadlines.while_responsive;
        let wait = async move {
            loop {
                // Before the check, so that an end after it is not missed.
                let ended = gate.pending_writes.ended.notified();
                let now = Instant::now();
                let is_over = !gate.pending_writes.has_in_flight_until(last) || now >= until;
                if is_over || requesting_thread.is_killed() {
                    break;
                }
                let next = tokio::time::Instant::from_std(until.min(now + KILL_CHECK_INTERVAL));
                let _ = tokio::time::timeout_at(next, ended).await;
            }
        };
        // The volume is going away where the runtime does not end it.
        let _ = self.locks.runtime().spawn(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_writes_before_it_and_for_none_after_it() {
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
