//! Calls below something that is renamed here at the same time.
//!
//! Replicas are asked by path. A rename changes the path on the write replica, and in the
//! tables ([`super::inodes`]) once the answer is there. A call that has the old path comes too
//! late in between: the path leads nowhere, or to another object, and the call fails. A
//! local file system would carry it out, as it knows the directory by its inode. So such a
//! call waits until the rename has ended, and is made again with the path that its inodes
//! have then.
//!
//! Not the other way round, with calls that wait until a rename below which they are has
//! ended, and renames that wait for calls: every call would pay for that, and one that hangs
//! would hold up others.
//!
//! *Invariant:* a call is made again only after an error that says that it was not carried
//! out, and only if something that its path leads through was renamed since it began. So a
//! change is still made once at most, and calls end: each repetition takes a rename, and
//! none begins after the deadline.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno as E;
use tokio::sync::Notify;

use super::{Errno, Fs, FsResult, Ino, task};

/// Renames that are under way, and those that ended last.
#[derive(Default)]
pub(super) struct RenameTracker {
    state: Mutex<RenameState>,
    /// One has ended.
    ended: Notify,
}

#[derive(Default)]
struct RenameState {
    in_flight: Vec<Arc<PathRename>>,
    /// So many have ended.
    finished_count: u64,
    /// The last of them, the oldest first.
    finished: VecDeque<Arc<PathRename>>,
}

/// So many that have ended are remembered one by one. Of a call that was overtaken by more
/// it is not known whether one of them concerns it, so they count as if one did.
const MAX_FINISHED: usize = 256;

/// A rename of one path to another.
struct PathRename {
    from: PathBuf,
    to: PathBuf,
}

/// A rename that is under way. When this is dropped it has ended, and the tables have
/// followed it.
pub(super) struct RenameGuard {
    fs: Arc<Fs>,
    rename: Arc<PathRename>,
    /// Whether it was refused, so that nothing has moved.
    pub(super) is_refused: bool,
}

/// Whether a call that may be made again changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetriedCall {
    /// It changes nothing.
    Lookup,
    /// It changes something.
    Mutation,
}

/// The paths and the finished renames at the start of a call.
#[derive(Clone)]
pub(super) struct CallStart {
    /// When the first try did.
    pub(super) started_at: Instant,
    inos: Vec<Ino>,
    /// Where they were.
    paths: Vec<PathBuf>,
    /// Renames that had ended.
    finished_before: u64,
}

/// The next step after a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryDecision {
    /// It failed for another reason.
    Fail,
    /// A rename is under way.
    WaitForRename,
    /// To be made again.
    Retry,
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
        let moves = &self.fs.renames;
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

/// Whether the error may be that of a path that does not lead to its inode any more. The
/// replica has not carried out what ends so.
fn is_path_error(errno: Errno) -> bool {
    let such = [E::NOENT, E::NOTDIR, E::STALE];
    such.iter().any(|error| error.raw_os_error() == errno.raw())
}

impl Fs {
    /// A rename begins.
    pub(super) fn start_rename(self: &Arc<Self>, from: PathBuf, to: PathBuf) -> RenameGuard {
        let own = Arc::new(PathRename { from, to });
        self.renames.state.lock().in_flight.push(Arc::clone(&own));
        RenameGuard { fs: Arc::clone(self), rename: own, is_refused: false }
    }

    /// A call begins that names `inos` by their paths.
    pub(super) fn start_call(&self, inos: &[Ino]) -> CallStart {
        self.restart_call(Instant::now(), inos.to_vec())
    }

    fn restart_call(&self, at: Instant, inos: Vec<Ino>) -> CallStart {
        // First, so that none is missed.
        let count = self.renames.state.lock().finished_count;
        let paths = self.paths_of(&inos);
        CallStart { started_at: at, inos, paths, finished_before: count }
    }

    fn paths_of(&self, inos: &[Ino]) -> Vec<PathBuf> {
        let inodes = self.inodes.lock();
        inos.iter().filter_map(|ino| inodes.path(*ino)).collect()
    }

    fn retry_decision(&self, begun: &CallStart) -> RetryDecision {
        if begun.started_at.elapsed() >= self.policy.deadlines.while_responsive {
            return RetryDecision::Fail;
        }
        let now = self.paths_of(&begun.inos);
        let concerns =
            |one: &PathRename| now.iter().chain(&begun.paths).any(|path| one.affects(path));
        let state = self.renames.state.lock();
        match () {
            () if state.in_flight.iter().any(|one| concerns(one)) => RetryDecision::WaitForRename,
            () if state.has_finished_since(begun.finished_before, concerns) => RetryDecision::Retry,
            () => RetryDecision::Fail,
        }
    }

    /// The new start of a call that has failed with this error and is to be made again, after
    /// it has waited for the renames in progress that its path leads through.
    ///
    /// # Errors
    /// What the call is answered with if it is not made again.
    pub(super) async fn retry_after_rename(
        self: &Arc<Self>,
        begun: CallStart,
        kind: RetriedCall,
        error: Errno,
    ) -> FsResult<CallStart> {
        if !is_path_error(error) {
            return Err(error);
        }
        let mut decision = self.retry_decision(&begun);
        if decision == RetryDecision::WaitForRename {
            // Until the change is queued, so that no handover comes in between.
            let waiting = || self.client.pending_changes.add_waiting();
            let waiting = (kind == RetriedCall::Mutation).then(waiting);
            task::release_held();
            // The volume is going away where the runtime does not end the wait: what the path
            // leads to is not known.
            decision = self.wait_for_renames(&begun).await.ok_or(Errno::IO)?;
            task::hold_until_reply(waiting);
        }
        match decision {
            RetryDecision::Retry => Ok(self.restart_call(begun.started_at, begun.inos)),
            RetryDecision::Fail | RetryDecision::WaitForRename => Err(error),
        }
    }

    async fn wait_for_renames(self: &Arc<Self>, begun: &CallStart) -> Option<RetryDecision> {
        let fs = Arc::clone(self);
        let begun = begun.clone();
        let wait = async move {
            let until = begun.started_at + fs.policy.deadlines.while_responsive;
            let until = tokio::time::Instant::from_std(until);
            loop {
                // Before the decision, so that an end after it is not missed.
                let ended = fs.renames.ended.notified();
                match fs.retry_decision(&begun) {
                    RetryDecision::WaitForRename => {
                        drop(tokio::time::timeout_at(until, ended).await)
                    }
                    decision => break decision,
                }
            }
        };
        self.locks.runtime().spawn(wait).await.ok()
    }

    /// The result of `call`, which names `inos` by their paths; the call is made again where a
    /// rename came between.
    pub(super) async fn with_rename_retry<T, F: Future<Output = FsResult<T>>>(
        self: &Arc<Self>,
        inos: &[Ino],
        kind: RetriedCall,
        call: impl Fn() -> F,
    ) -> FsResult<T> {
        if !self.can_write() {
            // Nothing is renamed through this mount.
            return call().await;
        }
        let mut begun = self.start_call(inos);
        loop {
            let error = match call().await {
                Err(error) => error,
                answer => return answer,
            };
            begun = self.retry_after_rename(begun, kind, error).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_concerns_what_is_below_either_name_and_nothing_beside_it() {
        let one = PathRename { from: "a/b".into(), to: "c".into() };
        let concerned = ["a/b", "a/b/x", "c", "c/x/y"].map(|path| one.affects(path.as_ref()));
        let others = ["", "a", "a/x", "a/bc", "cc"].map(|path| one.affects(path.as_ref()));
        assert_eq!((concerned, others), ([true; 4], [false; 5]));
    }

    #[test]
    fn renames_that_ended_before_a_call_began_do_not_count_and_forgotten_ones_do() {
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
