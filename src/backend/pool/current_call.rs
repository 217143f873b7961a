//! The call that each thread is inside: its object and its progress.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::PathKey;
use crate::nfs;

/// A thread's record of its current call.
pub(super) type CallSlot = Arc<Mutex<CurrentCall>>;

#[derive(Default)]
pub(super) struct CurrentCall {
    pub(super) path: PathBuf,
    /// Set during an inline call. A pool tracks the calls of its own threads itself.
    pub(super) inline_call: Option<InlineCall>,
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

    /// The job is about to call the replica about `path`.
    fn enter(&mut self, path: &Path) {
        let known = self.path.as_mut_os_string();
        known.clear();
        known.push(path);
        self.has_called = true;
    }
}

/// An inline call in progress.
#[derive(Clone, Copy)]
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
