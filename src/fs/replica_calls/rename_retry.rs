//! Repeats calls that a concurrent rename on this mount has made fail.
//!
//! Replicas are asked by path. A rename changes the path on the write replica first, and in the
//! tables ([`crate::fs::inodes`]) once the replica has answered. A call between these two has the
//! old path: it leads nowhere, or to another object, and the call fails. A local file system would
//! carry out the call, as it knows the directory by its inode. So such a call waits until the
//! rename has ended, and is repeated with the path that its inodes have then.
//!
//! The alternative is that calls below a rename wait for it, and renames wait for calls. Every call
//! would pay for that, and a hung call would block others.
//!
//! *Invariant:* a call is repeated only after an error that shows that it was not carried out. A
//! component of its path must have been renamed since it began. So a change is still made at most
//! once. Calls also end: each repetition needs a rename, and none begins after the deadline.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno as E;

use super::ReplicaCalls;
use crate::fs::error::{Errno, FsResult};
use crate::fs::ino::Ino;
use crate::fs::renames::RenameConflict;
use crate::replicas::task;

/// Whether a call that may be repeated changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum RetriedCall {
    /// It changes nothing.
    Lookup,
    /// It changes something.
    Mutation,
}

/// The paths at the start of a call, and the number of renames that had ended.
#[derive(Clone)]
pub(in crate::fs) struct CallStart {
    /// When the first try began.
    pub(in crate::fs) started_at: Instant,
    inos: Vec<Ino>,
    /// Their paths.
    paths: Vec<PathBuf>,
    /// The number of renames that had ended.
    finished_before: u64,
}

/// Whether the error may be caused by a path that no longer leads to its inode. A replica that
/// answers so has not carried out the call.
fn is_path_error(errno: Errno) -> bool {
    let such = [E::NOENT, E::NOTDIR, E::STALE];
    such.iter().any(|error| error.raw_os_error() == errno.raw())
}

impl ReplicaCalls {
    /// Notes the start of a call that names `inos` by their paths.
    pub(in crate::fs) fn start_call(&self, inos: &[Ino]) -> CallStart {
        self.restart_call(Instant::now(), inos.to_vec())
    }

    fn restart_call(&self, at: Instant, inos: Vec<Ino>) -> CallStart {
        // Counted first, so no rename is missed.
        let count = self.renames.finished_count();
        let paths = self.paths_of(&inos);
        CallStart { started_at: at, inos, paths, finished_before: count }
    }

    fn paths_of(&self, inos: &[Ino]) -> Vec<PathBuf> {
        let inodes = self.tables.inodes.lock();
        inos.iter().filter_map(|ino| inodes.path(*ino)).collect()
    }

    fn rename_conflict(&self, begun: &CallStart) -> RenameConflict {
        if begun.started_at.elapsed() >= self.tables.policy.deadlines.while_responsive {
            return RenameConflict::None;
        }
        let now = self.paths_of(&begun.inos);
        self.renames.conflict(now.iter().chain(&begun.paths), begun.finished_before)
    }

    /// Waits for the renames in progress that affect the path of a failed call. Returns the new
    /// start if the call must be repeated.
    ///
    /// # Errors The error of the call, if it is not repeated.
    pub(in crate::fs) async fn retry_after_rename(
        self: &Arc<Self>,
        begun: CallStart,
        kind: RetriedCall,
        error: Errno,
    ) -> FsResult<CallStart> {
        if !is_path_error(error) {
            return Err(error);
        }
        let mut conflict = self.rename_conflict(&begun);
        if conflict == RenameConflict::InFlight {
            // Held until the repeated change is queued, so no handover starts in between.
            let waiting = || self.client.pending_changes.add_waiting();
            let waiting = (kind == RetriedCall::Mutation).then(waiting);
            task::release_held();
            // If the runtime does not finish the wait, the volume is being shut down, and it is
            // unknown what the path leads to.
            conflict = self.wait_for_renames(&begun).await.ok_or(Errno::IO)?;
            task::hold_until_reply(waiting);
        }
        match conflict {
            RenameConflict::Finished => Ok(self.restart_call(begun.started_at, begun.inos)),
            RenameConflict::None | RenameConflict::InFlight => Err(error),
        }
    }

    async fn wait_for_renames(self: &Arc<Self>, begun: &CallStart) -> Option<RenameConflict> {
        let calls = Arc::clone(self);
        let begun = begun.clone();
        let wait = async move {
            let until = begun.started_at + calls.tables.policy.deadlines.while_responsive;
            let until = tokio::time::Instant::from_std(until);
            loop {
                // Before the decision, so an end after it is not missed.
                let ended = calls.renames.next_end();
                match calls.rename_conflict(&begun) {
                    RenameConflict::InFlight => drop(tokio::time::timeout_at(until, ended).await),
                    conflict => break conflict,
                }
            }
        };
        self.runtime.spawn(wait).await.ok()
    }

    /// The result of `call`, which names `inos` by their paths. The call is repeated if a rename
    /// interfered.
    pub(in crate::fs) async fn with_rename_retry<T, F: Future<Output = FsResult<T>>>(
        self: &Arc<Self>,
        inos: &[Ino],
        kind: RetriedCall,
        call: impl Fn() -> F,
    ) -> FsResult<T> {
        if !self.tables.can_write() {
            // This mount makes no renames.
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
