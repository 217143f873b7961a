//! The call that each thread is inside: its object and its progress.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::thread::Pid;

use crate::backend::{PathKey, thread_name};
use crate::nfs;

/// A thread's record of its current call.
pub(super) type CallSlot = Arc<Mutex<CurrentCall>>;

#[derive(Default)]
pub(super) struct CurrentCall {
    pub(super) path: PathBuf,
    /// Set during an inline call. A pool tracks the calls of its own threads itself.
    pub(super) inline_call: Option<InlineCall>,
    /// The thread, if it makes inline calls.
    pub(super) thread: Option<Pid>,
    /// Its usual name, while it has another one because of an inline call.
    usual_name: Option<String>,
    /// Whether the current job has called the replica.
    pub(super) has_called: bool,
    /// When the job last completed a part of its answer.
    pub(super) last_progress: Option<Instant>,
}

impl CurrentCall {
    /// A job starts.
    pub(super) fn reset(&mut self) {
        self.has_called = false;
        self.last_progress = None;
    }

    /// Renames the thread until its inline call ends, unless that has ended. Its new name is made
    /// from the usual one.
    pub(super) fn name_thread(
        &mut self,
        inline_call: &InlineCall,
        rename: impl FnOnce(&str) -> String,
    ) {
        if self.inline_call.as_ref() != Some(inline_call) || self.usual_name.is_some() {
            return;
        }
        let Some(thread) = self.thread else { return };
        let Ok(usual) = thread_name::of_thread(thread) else { return };
        // Without the new name the thread counts as possibly inside a change.
        if thread_name::rename_thread(thread, &rename(&usual)).is_ok() {
            self.usual_name = Some(usual);
        }
    }

    /// The thread's inline call has ended; it was made during the call `around`, if any.
    pub(super) fn end_inline_call(&mut self, around: Option<InlineCall>) {
        self.inline_call = around;
        if let (Some(usual), Some(thread)) = (self.usual_name.take(), self.thread)
            && let Err(error) = thread_name::rename_thread(thread, &usual)
        {
            tracing::error!(%error, "a thread cannot get its name back after a call");
        }
    }

    /// The job is about to call the replica about `path`.
    fn enter(&mut self, path: &Path) {
        let known = self.path.as_mut_os_string();
        known.clear();
        known.push(path);
        self.has_called = true;
    }
}

/// An inline call in progress.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InlineCall {
    pub(super) pool_id: u64,
    pub(super) path_key: PathKey,
    pub(super) since: Instant,
}

thread_local! {
    pub(super) static CURRENT_CALL: CallSlot = CallSlot::default();
    /// The ids of the pools that have this thread's slot.
    pub(super) static REGISTERED_POOLS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Records that the calling thread is about to call the replica about `path`, or to wait for such a
/// call. Debug builds check that the thread may wait.
pub fn enter_call(path: &Path) {
    debug_assert!(nfs::may_block(), "a connection's thread waits for a replica");
    CURRENT_CALL.with(|slot| slot.lock().enter(path));
}

/// Records that the replica has answered a part of the calling thread's job.
pub fn report_progress() {
    CURRENT_CALL.with(|slot| slot.lock().last_progress = Some(Instant::now()));
}
