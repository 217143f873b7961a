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
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::write_gate::WriteGate;
use super::{Fs, task};
use crate::backend::RequestingThread;

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

/// A write that has arrived. It ends when this is dropped.
pub(super) struct PendingWrite {
    gate: Arc<WriteGate>,
    number: u64,
}

/// How often a read that waits looks whether its caller was killed.
const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl PendingWrites {
    fn add(&self) -> u64 {
        let mut state = self.state.lock();
        state.arrived_count += 1;
        let number = state.arrived_count;
        state.in_flight.insert(number);
        number
    }

    fn remove(&self, number: u64) {
        self.state.lock().in_flight.remove(&number);
        self.ended.notify_waiters();
    }

    /// The last write that is under way.
    fn last_in_flight(&self) -> Option<u64> {
        self.state.lock().in_flight.last().copied()
    }

    /// Whether any write up to `last` is under way.
    fn has_in_flight_until(&self, last: u64) -> bool {
        self.state.lock().in_flight.first().is_some_and(|first| *first <= last)
    }
}

impl WriteGate {
    /// A write through the kernel's page cache has arrived.
    pub(super) fn track_write(self: &Arc<Self>) -> PendingWrite {
        PendingWrite { gate: Arc::clone(self), number: self.pending_writes.add() }
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.gate.pending_writes.remove(self.number);
    }
}

impl Fs {
    /// Waits until the writes of the file have ended that arrived before a read, which arrived
    /// at `since`.
    pub(super) async fn wait_for_earlier_writes(
        self: &Arc<Self>,
        gate: &Arc<WriteGate>,
        since: Instant,
    ) {
        let Some(last) = gate.pending_writes.last_in_flight() else { return };
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
