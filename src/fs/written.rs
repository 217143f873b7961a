//! Files that are open for writing.
//!
//! As long as any handle may write a file, all of its handles read it from the
//! write replica, past everything that is kept of it here: what was written is
//! seen at once, and what another replica has of it by then is seen by nobody.
//!
//! *Invariants:*
//! - A read and a write of one file exclude each other, as on an NFS mount, so no
//!   answer is half of one write.
//! - A change that nobody got an answer to may still be under way. While it is,
//!   no other change of that file is begun: it could be overtaken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Errno;
use crate::backend::{BackendFile, Identity};

/// A handle that may write.
pub(super) struct Writer {
    /// As the write replica has it open for this handle alone.
    pub(super) file: Arc<dyn BackendFile>,
    /// Whether it can be read through.
    pub(super) readable: bool,
    /// In whose name.
    pub(super) who: Identity,
    /// What the next fsync(2) or close(2) is to say.
    trouble: Mutex<Option<Errno>>,
    /// When its last change was noted.
    noted: Mutex<Option<Instant>>,
}

impl Writer {
    pub(super) fn new(file: Arc<dyn BackendFile>, readable: bool, who: Identity) -> Self {
        Self { file, readable, who, trouble: Mutex::new(None), noted: Mutex::new(None) }
    }

    /// A change may have been lost.
    pub(super) fn fails(&self, errno: Errno) {
        *self.trouble.lock() = Some(errno);
    }

    /// What is to be said of changes before now, once.
    pub(super) fn trouble(&self) -> Option<Errno> {
        self.trouble.lock().take()
    }

    /// Whether a change at `now` has to be noted, as the last one was `often` ago.
    pub(super) fn is_to_note(&self, now: Instant, often: std::time::Duration) -> bool {
        let mut noted = self.noted.lock();
        let due = noted.is_none_or(|at| now.saturating_duration_since(at) >= often);
        if due {
            *noted = Some(now);
        }
        due
    }
}

/// Changes of a file that have not come to an end.
#[derive(Default)]
pub(super) struct Unsettled {
    running: AtomicUsize,
    /// Whether any of them was given up.
    given_up: AtomicBool,
}

/// A change that is under way; it is not any more when this is dropped.
pub(super) struct UnderWay(Arc<Unsettled>);

impl Unsettled {
    /// A change begins; `None` where it could be overtaken by an older one.
    pub(super) fn begin(self: &Arc<Self>) -> Option<UnderWay> {
        let others = self.running.fetch_add(1, Ordering::AcqRel);
        let under_way = UnderWay(Arc::clone(self));
        if others == 0 {
            self.given_up.store(false, Ordering::Release);
        }
        (!self.given_up.load(Ordering::Acquire)).then_some(under_way)
    }

    /// Somebody was told that a change did not end in time.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_while_something_given_up_is_under_way() {
        let unsettled = Arc::new(Unsettled::default());
        let lost = unsettled.begin().unwrap();
        let other = unsettled.begin().unwrap();
        unsettled.give_up();
        drop(other);
        assert!(unsettled.begin().is_none());
        drop(lost);
        assert!(unsettled.begin().is_some());
    }
}
