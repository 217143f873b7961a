//! Renames through this mount: those in flight, and the last ones that ended.
//!
//! A call below a renamed directory may have an old path. [`super::replica_calls`] asks here
//! whether the call must be repeated.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Renames in flight, and the last ones that ended.
#[derive(Default)]
pub(super) struct RenameTracker {
    state: Mutex<RenameState>,
    /// Notified when a rename ends.
    ended: Notify,
}

#[derive(Default)]
struct RenameState {
    in_flight: Vec<Arc<PathRename>>,
    /// Renames that have ended so far.
    finished_count: u64,
    /// The last of them, the oldest first.
    finished: VecDeque<Arc<PathRename>>,
}

/// Ended renames remembered one by one. If more have ended since a call began, it is unknown
/// whether one of them affects the call, so they count as if one did.
const MAX_FINISHED: usize = 256;

/// A rename of one path to another.
struct PathRename {
    from: PathBuf,
    to: PathBuf,
}

/// A rename in flight. Dropping it ends the rename; the tables must have followed it by then.
pub(super) struct RenameGuard {
    tracker: Arc<RenameTracker>,
    rename: Arc<PathRename>,
    /// Whether the replica refused it, so nothing has moved.
    pub(super) is_refused: bool,
}

/// How the renames of this mount affect a call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenameConflict {
    /// No rename affects it.
    None,
    /// A rename that affects it is in flight.
    InFlight,
    /// A rename that affects it has ended since the call began.
    Finished,
}

impl RenameTracker {
    /// Starts a rename.
    pub(super) fn start(self: &Arc<Self>, from: PathBuf, to: PathBuf) -> RenameGuard {
        let rename = Arc::new(PathRename { from, to });
        self.state.lock().in_flight.push(Arc::clone(&rename));
        RenameGuard { tracker: Arc::clone(self), rename, is_refused: false }
    }

    /// The number of renames that have ended.
    pub(super) fn finished_count(&self) -> u64 {
        self.state.lock().finished_count
    }

    /// Completes when the next rename ends.
    pub(super) fn next_end(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Whether any rename affects one of `paths`: one in flight, or one that ended after the first
    /// `finished_before`.
    pub(super) fn conflict<'a>(
        &self,
        paths: impl Iterator<Item = &'a PathBuf> + Clone,
        finished_before: u64,
    ) -> RenameConflict {
        let concerns = |one: &PathRename| paths.clone().any(|path| one.affects(path));
        let state = self.state.lock();
        match () {
            () if state.in_flight.iter().any(|one| concerns(one)) => RenameConflict::InFlight,
            () if state.has_finished_since(finished_before, concerns) => RenameConflict::Finished,
            () => RenameConflict::None,
        }
    }
}

impl PathRename {
    fn affects(&self, path: &Path) -> bool {
        path.starts_with(&self.from) || path.starts_with(&self.to)
    }
}

impl RenameState {
    fn has_finished_since(&self, count: u64, concerns: impl Fn(&PathRename) -> bool) -> bool {
        let new = self.finished_count - count;
        match usize::try_from(new) {
            Ok(new) if new <= self.finished.len() => {
                self.finished.iter().rev().take(new).any(|one| concerns(one))
            }
            _ => true,
        }
    }
}

impl Drop for RenameGuard {
    fn drop(&mut self) {
        let moves = &self.tracker;
        {
            let mut state = moves.state.lock();
            state.in_flight.retain(|other| !Arc::ptr_eq(other, &self.rename));
            if !self.is_refused {
                state.finished_count += 1;
                if state.finished.len() >= MAX_FINISHED {
                    state.finished.pop_front();
                }
                state.finished.push_back(Arc::clone(&self.rename));
            }
        }
        moves.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_affects_only_paths_below_either_name() {
        let one = PathRename { from: "a/b".into(), to: "c".into() };
        let concerned = ["a/b", "a/b/x", "c", "c/x/y"].map(|path| one.affects(path.as_ref()));
        let others = ["", "a", "a/x", "a/bc", "cc"].map(|path| one.affects(path.as_ref()));
        assert_eq!((concerned, others), ([true; 4], [false; 5]));
    }

    #[test]
    fn only_concurrent_or_forgotten_renames_count() {
        let end = |state: &mut RenameState, from: &str| {
            state.finished_count += 1;
            state.finished.push_back(Arc::new(PathRename { from: from.into(), to: "z".into() }));
        };
        let mut state = RenameState::default();
        end(&mut state, "a");
        end(&mut state, "b");
        let since = |state: &RenameState, count, path: &str| {
            state.has_finished_since(count, |one| one.affects(path.as_ref()))
        };
        assert!(since(&state, 0, "a/x") && since(&state, 1, "b/x"));
        assert!(!since(&state, 1, "a/x") && !since(&state, 2, "b/x") && !since(&state, 0, "c"));
        state.finished.pop_front();
        assert!(since(&state, 0, "c") && !since(&state, 1, "c"));
    }
}
