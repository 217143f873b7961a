//! Changes that have not been answered, and how far each one is.
//!
//! A daemon that hands over waits for them. It may leave those that a replica does not
//! answer: the kernel sends them to the next daemon.
//!
//! *Invariant:* after [`Changes::leave`] no change begins on the replica, until
//! [`Changes::come_back`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[derive(Default)]
pub(in crate::fs) struct Changes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: u64,
    phases: HashMap<u64, Phase>,
    /// When a change last began on the replica, or ended there.
    moved: Option<Instant>,
    is_left: bool,
}

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for a thread, or for another change.
    Queued,
    /// The replica is asked.
    Inside,
    /// The replica has answered and the tables follow, or it is not to begin yet.
    Here,
}

/// One change. It counts until its caller has the answer.
pub(in crate::fs) struct Counted {
    changes: Arc<Changes>,
    number: u64,
}

/// Counts as a change under way until it is dropped: it waits before it is queued, or
/// before its caller is answered.
pub(in crate::fs) struct DelayedChange(Counted);

/// Counts as a queued change until it is dropped: it waits for another one. The next daemon
/// may be asked instead.
pub(in crate::fs) struct WaitingChange(Counted);

impl Changes {
    /// A change is queued.
    pub(super) fn queue(self: &Arc<Self>) -> Counted {
        self.add(Phase::Queued)
    }

    /// A change is about to wait.
    pub(in crate::fs) fn delay(self: &Arc<Self>) -> DelayedChange {
        DelayedChange(self.add(Phase::Here))
    }

    /// A change is about to wait for another one.
    pub(in crate::fs) fn wait(self: &Arc<Self>) -> WaitingChange {
        WaitingChange(self.add(Phase::Queued))
    }

    fn add(self: &Arc<Self>, phase: Phase) -> Counted {
        let mut state = self.state.lock();
        state.number += 1;
        let number = state.number;
        state.phases.insert(number, phase);
        Counted { changes: Arc::clone(self), number }
    }

    /// Whether any is under way.
    pub(in crate::fs) fn are_under_way(&self) -> bool {
        !self.state.lock().phases.is_empty()
    }

    /// Lets none begin any more, if the replica has been silent for `time`: all changes
    /// are inside it or wait for it, and none has begun or ended since.
    pub(in crate::fs) fn leave(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let moves = state.moved.is_some_and(|at| at.elapsed() < time);
        state.is_left = !moves && state.phases.values().all(|phase| *phase != Phase::Here);
        state.is_left
    }

    /// Lets changes begin again.
    pub(in crate::fs) fn come_back(&self) {
        self.state.lock().is_left = false;
    }
}

impl Counted {
    /// The replica is about to be asked; false where it must not be asked any more.
    pub(super) fn enters(&self) -> bool {
        let mut state = self.changes.state.lock();
        if !state.is_left {
            state.moves(self.number, Phase::Inside);
        }
        !state.is_left
    }

    /// The replica has answered.
    pub(super) fn comes_out(&self) {
        self.changes.state.lock().moves(self.number, Phase::Here);
    }

    /// Its caller has the answer.
    pub(super) fn is_answered(&self) {
        self.changes.state.lock().phases.remove(&self.number);
    }
}

impl State {
    /// The replica's answer to a change whose caller gave up counts as well.
    fn moves(&mut self, number: u64, to: Phase) {
        self.moved = Some(Instant::now());
        if let Some(phase) = self.phases.get_mut(&number) {
            *phase = to;
        }
    }
}

impl Drop for DelayedChange {
    fn drop(&mut self) {
        self.0.is_answered();
    }
}

impl Drop for WaitingChange {
    fn drop(&mut self) {
        self.0.is_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(3600);

    /// The kernel sends it to the next daemon.
    #[test]
    fn a_change_that_waits_for_another_one_counts_and_may_be_left() {
        let changes = Arc::new(Changes::default());
        let waiting = changes.wait();
        assert!(changes.are_under_way() && changes.leave(NO_TIME));
        let queued = changes.queue();
        drop(waiting);
        assert!(!queued.enters() && changes.are_under_way());
    }

    #[test]
    fn only_changes_that_a_silent_replica_has_are_left() {
        let changes = Arc::new(Changes::default());
        let (inside, queued) = (changes.queue(), changes.queue());
        assert!(inside.enters());
        assert!(!changes.leave(LONG), "one has just begun");
        let delayed = changes.delay();
        assert!(!changes.leave(NO_TIME), "one is not the replica's to answer");
        drop(delayed);
        assert!(changes.leave(NO_TIME));
        assert!(!queued.enters());
        changes.come_back();
        assert!(queued.enters());
        inside.comes_out();
        assert!(!changes.leave(NO_TIME), "its caller is about to be answered");
        inside.is_answered();
        assert!(changes.leave(NO_TIME) && changes.are_under_way());
        queued.is_answered();
        queued.comes_out();
        assert!(!changes.are_under_way());
    }
}
