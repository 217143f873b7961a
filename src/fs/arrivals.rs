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

use super::Fs;
use super::written::Gate;
use crate::backend::Asker;

/// The writes of one file through the kernel's page cache that have not ended.
#[derive(Default)]
pub(super) struct Arrivals {
    state: Mutex<State>,
    /// One has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// So many have arrived.
    count: u64,
    under_way: BTreeSet<u64>,
}

/// A write that has arrived. It ends when this is dropped.
pub(super) struct Arrived {
    gate: Arc<Gate>,
    number: u64,
}

/// How often a read that waits looks whether its caller was killed.
const LOOK: Duration = Duration::from_millis(250);

impl Arrivals {
    fn add(&self) -> u64 {
        let mut state = self.state.lock();
        state.count += 1;
        let number = state.count;
        state.under_way.insert(number);
        number
    }

    fn ends(&self, number: u64) {
        self.state.lock().under_way.remove(&number);
        self.ended.notify_waiters();
    }

    /// The last write that is under way.
    fn last(&self) -> Option<u64> {
        self.state.lock().under_way.last().copied()
    }

    /// Whether any write up to `last` is under way.
    fn has_until(&self, last: u64) -> bool {
        self.state.lock().under_way.first().is_some_and(|first| *first <= last)
    }
}

impl Gate {
    /// A write through the kernel's page cache has arrived.
    pub(super) fn arrives(self: &Arc<Self>) -> Arrived {
        Arrived { gate: Arc::clone(self), number: self.arrivals.add() }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.gate.arrivals.ends(self.number);
    }
}

impl Fs {
    /// Submits a read that arrived at `since` by `then`, once the writes have ended that
    /// arrived before it.
    pub(super) fn after_writes(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        since: Instant,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let Some(last) = gate.arrivals.last() else { return then(self) };
        let (fs, gate, asker) = (Arc::clone(self), Arc::clone(gate), Asker::now());
        let waiting = self.caller.waits();
        self.locks.runtime().spawn(async move {
            let until = since + fs.policy.deadlines.some;
            loop {
                // Before the look, so that an end after it is not missed.
                let ended = gate.arrivals.ended.notified();
                let now = Instant::now();
                if !gate.arrivals.has_until(last) || now >= until || asker.is_killed() {
                    break;
                }
                let next = tokio::time::Instant::from_std(until.min(now + LOOK));
                let _ = tokio::time::timeout_at(next, ended).await;
            }
            asker.during(|| then(&fs));
            drop(waiting);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_writes_before_it_and_for_none_after_it() {
        let arrivals = Arrivals::default();
        assert_eq!(arrivals.last(), None);
        let (first, second) = (arrivals.add(), arrivals.add());
        let last = arrivals.last().unwrap();
        let third = arrivals.add();
        arrivals.ends(second);
        assert!(arrivals.has_until(last));
        arrivals.ends(first);
        assert!(!arrivals.has_until(last));
        assert_eq!(arrivals.last(), Some(third));
    }
}
