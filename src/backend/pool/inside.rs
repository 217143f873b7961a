//! What each thread is inside of: the object, and the part of its answer that it has.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::About;

/// Where a thread says what it is inside of.
pub(super) type Slot = Arc<Mutex<Inside>>;

#[derive(Default)]
pub(super) struct Inside {
    pub(super) path: PathBuf,
    /// Where it is a guest: a pool keeps the calls of its own threads.
    pub(super) visit: Option<Visit>,
    /// Whether the job has called the replica.
    pub(super) has_called: bool,
    /// When the job last had a part of its answer.
    pub(super) moved: Option<Instant>,
}

impl Inside {
    /// A job begins.
    pub(super) fn begin(&mut self) {
        (self.has_called, self.moved) = (false, None);
    }

    /// The job is about to call the replica about `path`.
    fn call(&mut self, path: &Path) {
        let known = self.path.as_mut_os_string();
        known.clear();
        known.push(path);
        self.has_called = true;
    }
}

/// A guest's call under way.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    pub(super) pool: u64,
    pub(super) about: About,
    pub(super) since: Instant,
}

thread_local! {
    pub(super) static INSIDE: Slot = Slot::default();
    /// The pools that know this thread's slot.
    pub(super) static VISITED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread is about to call the replica about `path`, or to wait for a call
/// about it.
pub fn inside(path: &Path) {
    INSIDE.with(|slot| slot.lock().call(path));
}

/// The replica has answered a part of what the calling thread's job is to bring.
pub fn has_a_part() {
    INSIDE.with(|slot| slot.lock().moved = Some(Instant::now()));
}
