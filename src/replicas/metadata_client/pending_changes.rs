//! Changes that have not been answered, and the phase of each.
//!
//! A daemon waits for them before a handover. It may leave changes that a replica does not answer:
//! the kernel sends them to the next daemon.
//!
//! *Invariant:* after [`PendingChanges::freeze_if_unresponsive`] returns true, no change starts on
//! the replica until [`PendingChanges::unfreeze`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[derive(Default)]
pub struct PendingChanges {
    state: Mutex<PendingState>,
}

#[derive(Default)]
struct PendingState {
    last_number: u64,
    phases: HashMap<u64, ChangePhase>,
    /// When a change last started or ended on the replica.
    last_progress: Option<Instant>,
    is_frozen: bool,
}

/// The phase of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangePhase {
    /// It waits for a thread, or for another change.
    Queued,
    /// The replica has been asked.
    OnReplica,
    /// The replica has answered and the tables are being updated, or the change must not start yet.
    InDaemon,
}

/// A pending change. It counts until its caller has the answer.
#[derive(Clone)]
pub(super) struct PendingChange {
    registry: Arc<PendingChanges>,
    number: u64,
}

/// Counts as a change in progress until it is dropped: it waits before it is queued, or before its
/// caller is answered.
pub struct DelayedChange(PendingChange);

/// Counts as a queued change until it is dropped: it waits for another one. The kernel may send it
/// to the next daemon instead.
pub struct WaitingChange(PendingChange);

impl PendingChanges {
    /// Adds a queued change.
    pub(super) fn add_queued(self: &Arc<Self>) -> PendingChange {
        self.add(ChangePhase::Queued)
    }

    /// Adds a change that waits inside the daemon.
    pub fn add_delayed(self: &Arc<Self>) -> DelayedChange {
        DelayedChange(self.add(ChangePhase::InDaemon))
    }

    /// Adds a change that waits for another one.
    pub fn add_waiting(self: &Arc<Self>) -> WaitingChange {
        WaitingChange(self.add(ChangePhase::Queued))
    }

    fn add(self: &Arc<Self>, phase: ChangePhase) -> PendingChange {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.phases.insert(number, phase);
        PendingChange { registry: Arc::clone(self), number }
    }

    /// Whether any change is pending.
    pub fn has_pending(&self) -> bool {
        !self.state.lock().phases.is_empty()
    }

    /// Stops new changes from starting if the replica has been silent for `time`: all changes are
    /// inside it or wait for it, and none has started or ended since. Returns whether they are
    /// stopped.
    pub fn freeze_if_unresponsive(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let moves = state.last_progress.is_some_and(|at| at.elapsed() < time);
        state.is_frozen =
            !moves && state.phases.values().all(|phase| *phase != ChangePhase::InDaemon);
        state.is_frozen
    }

    /// Lets changes start again.
    pub fn unfreeze(&self) {
        self.state.lock().is_frozen = false;
    }
}

impl PendingChange {
    /// Records that the replica is about to be asked; false if it must not be asked any more.
    pub(super) fn start_on_replica(&self) -> bool {
        let mut state = self.registry.state.lock();
        if !state.is_frozen {
            state.set_phase(self.number, ChangePhase::OnReplica);
        }
        !state.is_frozen
    }

    pub(super) fn finish_on_replica(&self) {
        self.registry.state.lock().set_phase(self.number, ChangePhase::InDaemon);
    }

    /// Removes a change whose caller has the answer.
    pub(super) fn remove(&self) {
        self.registry.state.lock().phases.remove(&self.number);
    }
}

impl PendingState {
    /// Counts as progress even if the change's caller has given up.
    fn set_phase(&mut self, number: u64, to: ChangePhase) {
        self.last_progress = Some(Instant::now());
        if let Some(phase) = self.phases.get_mut(&number) {
            *phase = to;
        }
    }
}

impl Drop for DelayedChange {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Drop for WaitingChange {
    fn drop(&mut self) {
        self.0.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(3600);

    /// The kernel sends such a change to the next daemon.
    #[test]
    fn a_waiting_change_is_pending_and_may_be_left_behind() {
        let changes = Arc::new(PendingChanges::default());
        let waiting = changes.add_waiting();
        assert!(changes.has_pending() && changes.freeze_if_unresponsive(NO_TIME));
        let queued = changes.add_queued();
        drop(waiting);
        assert!(!queued.start_on_replica() && changes.has_pending());
    }

    #[test]
    fn only_changes_in_a_silent_replica_are_left_behind() {
        let changes = Arc::new(PendingChanges::default());
        let (inside, queued) = (changes.add_queued(), changes.add_queued());
        assert!(inside.start_on_replica());
        assert!(!changes.freeze_if_unresponsive(LONG), "one has just begun");
        let delayed = changes.add_delayed();
        assert!(!changes.freeze_if_unresponsive(NO_TIME), "one is not the replica's to answer");
        drop(delayed);
        assert!(changes.freeze_if_unresponsive(NO_TIME));
        assert!(!queued.start_on_replica());
        changes.unfreeze();
        assert!(queued.start_on_replica());
        inside.finish_on_replica();
        assert!(!changes.freeze_if_unresponsive(NO_TIME), "its caller is about to be answered");
        inside.remove();
        assert!(changes.freeze_if_unresponsive(NO_TIME) && changes.has_pending());
        queued.remove();
        queued.finish_on_replica();
        assert!(!changes.has_pending());
    }
}
