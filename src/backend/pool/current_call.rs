//! What each thread is inside of: the object, and the part of its answer that it has.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::PathKey;

/// Where a thread says what it is inside of.
pub(super) type CallSlot = Arc<Mutex<CurrentCall>>;

#[derive(Default)]
pub(super) struct CurrentCall {
    pub(super) path: PathBuf,
    /// Where it is a guest: a pool keeps the calls of its own threads.
    pub(super) inline_call: Option<InlineCall>,
    /// Whether the job has called the replica.
    pub(super) has_called: bool,
    /// When the job last had a part of its answer.
    pub(super) last_progress: Option<Instant>,
}

impl CurrentCall {
    /// A job begins.
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

/// A guest's call under way.
#[derive(Clone, Copy)]
pub(super) struct InlineCall {
    pub(super) pool_id: u64,
    pub(super) path_key: PathKey,
    pub(super) since: Instant,
}

thread_local! {
    pub(super) static CURRENT_CALL: CallSlot = CallSlot::default();
    /// The pools that know this thread's slot.
    pub(super) static REGISTERED_POOLS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread is about to call the replica about `path`, or to wait for a call
/// about it.
pub fn enter_call(path: &Path) {
    CURRENT_CALL.with(|slot| slot.lock().enter(path));
}

/// The replica has answered a part of what the calling thread's job is to bring.
pub fn report_progress() {
    CURRENT_CALL.with(|slot| slot.lock().last_progress = Some(Instant::now()));
}
