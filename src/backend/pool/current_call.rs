//! The call that each thread is inside: its object and its progress.

use std::cell::RefCell;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::thread::{Pid, gettid};

use crate::backend::{PathKey, thread_name};
use crate::nfs;

/// A thread's record of its current call.
pub(super) type CallSlot = Arc<Mutex<CurrentCall>>;

#[derive(Default)]
pub(super) struct CurrentCall {
    pub(super) path: PathBuf,
    /// Set during an inline call. A pool tracks the calls of its own threads itself.
    pub(super) inline_call: Option<InlineCall>,
    /// The thread, if it makes inline calls, and its usual name.
    identity: Option<(Pid, CString)>,
    /// Whether it has another name because of an inline call.
    is_renamed: bool,
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

    /// The calling thread, whose slot this is, is about to make inline calls.
    pub(super) fn identify(&mut self) {
        if self.identity.is_none() {
            self.identity = rustix::thread::name().ok().map(|name| (gettid(), name));
        }
    }

    /// Renames the thread until its inline call ends, unless that has ended. A thread that cannot be
    /// renamed counts as possibly inside a change.
    pub(super) fn name_thread(&mut self, inline_call: &InlineCall, makes_changes: bool) {
        let Some((thread, usual)) = &self.identity else { return };
        if self.is_renamed || self.inline_call.as_ref() != Some(inline_call) {
            return;
        }
        let name = thread_name::prefixed(&usual.to_string_lossy(), makes_changes);
        // Under this lock, so the thread does not begin another call meanwhile.
        self.is_renamed = thread_name::rename_thread(*thread, &name).is_ok();
    }

    /// The calling thread begins an inline call. Returns the one that it is inside already, if any.
    pub(super) fn begin_inline_call(&mut self, call: InlineCall) -> Option<InlineCall> {
        if self.is_renamed {
            self.restore_name();
        }
        self.inline_call.replace(call)
    }

    /// The calling thread's inline call has ended; it is still inside the call `around`, if any.
    pub(super) fn end_inline_call(&mut self, around: Option<InlineCall>) {
        if self.is_renamed {
            self.restore_name();
        }
        self.inline_call = around;
    }

    #[cold]
    fn restore_name(&mut self) {
        let Some((_, usual)) = &self.identity else { return };
        match rustix::thread::set_name(usual) {
            Ok(()) => self.is_renamed = false,
            Err(error) => tracing::error!(%error, "a thread cannot get its name back"),
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
