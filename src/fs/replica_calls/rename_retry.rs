//! Calls below something that is renamed here at the same time.
//!
//! Replicas are asked by path. A rename changes the path on the write replica, and in the
//! tables ([`crate::fs::inodes`]) once the answer is there. A call that has the old path comes too
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

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno as E;

use super::ReplicaCalls;
use crate::fs::error::{Errno, FsResult};
use crate::fs::ino::Ino;
use crate::fs::renames::RenameConflict;
use crate::replicas::task;

/// Whether a call that may be made again changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum RetriedCall {
    /// It changes nothing.
    Lookup,
    /// It changes something.
    Mutation,
}

/// The paths and the finished renames at the start of a call.
#[derive(Clone)]
pub(in crate::fs) struct CallStart {
    /// When the first try did.
    pub(in crate::fs) started_at: Instant,
    inos: Vec<Ino>,
    /// Where they were.
    paths: Vec<PathBuf>,
    /// Renames that had ended.
    finished_before: u64,
}

/// Whether the error may be that of a path that does not lead to its inode any more. The
/// replica has not carried out what ends so.
fn is_path_error(errno: Errno) -> bool {
    let such = [E::NOENT, E::NOTDIR, E::STALE];
    such.iter().any(|error| error.raw_os_error() == errno.raw())
}

impl ReplicaCalls {
    /// A call begins that names `inos` by their paths.
    pub(in crate::fs) fn start_call(&self, inos: &[Ino]) -> CallStart {
        self.restart_call(Instant::now(), inos.to_vec())
    }

    fn restart_call(&self, at: Instant, inos: Vec<Ino>) -> CallStart {
        // First, so that none is missed.
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

    /// The new start of a call that has failed with this error and is to be made again, after
    /// it has waited for the renames in progress that its path leads through.
    ///
    /// # Errors
    /// What the call is answered with if it is not made again.
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
            // Until the change is queued, so that no handover comes in between.
            let waiting = || self.client.pending_changes.add_waiting();
            let waiting = (kind == RetriedCall::Mutation).then(waiting);
            task::release_held();
            // The volume is going away where the runtime does not end the wait: what the path
            // leads to is not known.
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
                // Before the decision, so that an end after it is not missed.
                let ended = calls.renames.next_end();
                match calls.rename_conflict(&begun) {
                    RenameConflict::InFlight => drop(tokio::time::timeout_at(until, ended).await),
                    conflict => break conflict,
                }
            }
        };
        self.runtime.spawn(wait).await.ok()
    }

    /// The result of `call`, which names `inos` by their paths; the call is made again where a
    /// rename came between.
    pub(in crate::fs) async fn with_rename_retry<T, F: Future<Output = FsResult<T>>>(
        self: &Arc<Self>,
        inos: &[Ino],
        kind: RetriedCall,
        call: impl Fn() -> F,
    ) -> FsResult<T> {
        if !self.tables.can_write() {
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
