//! Files that a change may still reach although its caller was answered.
//!
//! A change that hangs in the write replica is given up at its deadline. When the replica answers
//! again, a thread may still make it: of this daemon, or of an earlier daemon that has not ended.
//! Until then no newer change of that file must be made, as the older one would overwrite it.
//! [`super::write_gate::WriteGate`] asks here before each change.
//!
//! An earlier daemon leaves the list of these files with its tables. The kernel adds the changes
//! that it got no reply to, because it sends them again.
//!
//! If the next daemon has another write replica, or has no list, any change is in doubt. It then
//! makes no change until the earlier daemons have finished, as two replicas do not keep changes in
//! order.
//!
//! *Invariant:* the journal lists a file before the kernel learns that a change of it was given up.
//! A file leaves the list only when no thread can change it any more.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::ino::{Ino, InoMap};
use super::journal::Unflushed;
use super::records::JournalEntry;
use super::step_log::StepLog;
use crate::sync::{LockRank, RankedMutex, RankedMutexGuard};

/// Returns whether all earlier daemons have finished on the write replica.
type EarlierDaemonsEnded = Box<dyn Fn() -> bool + Send + Sync>;

pub(super) struct UnsettledChanges {
    files: RankedMutex<UnsettledFiles>,
    log: Arc<StepLog>,
    earlier_daemons_ended: Mutex<Option<EarlierDaemonsEnded>>,
    /// Whether `earlier_daemons_ended` is set; read without the lock.
    has_earlier_daemons: AtomicBool,
    /// Whether an earlier daemon may be making any change.
    is_all_in_doubt: AtomicBool,
    /// Whether the next daemon makes the changes that have not begun.
    is_handed_over: AtomicBool,
}

#[derive(Default)]
pub(super) struct UnsettledFiles {
    /// Changes of this daemon that were given up and have not ended.
    own_changes: InoMap<usize>,
    /// Files that an earlier daemon may be changing.
    earlier_daemons: HashSet<Ino>,
}

impl UnsettledFiles {
    /// All files.
    pub(super) fn inos(&self) -> Vec<u64> {
        let all: HashSet<Ino> =
            self.own_changes.keys().chain(&self.earlier_daemons).copied().collect();
        all.into_iter().map(|ino| ino.0).collect()
    }
}

impl UnsettledChanges {
    /// No files. Changes of the list are recorded in `log`.
    pub(super) fn new(log: Arc<StepLog>) -> Self {
        Self {
            files: RankedMutex::new(LockRank::UnsettledChanges, UnsettledFiles::default()),
            log,
            earlier_daemons_ended: Mutex::default(),
            has_earlier_daemons: AtomicBool::default(),
            is_all_in_doubt: AtomicBool::default(),
            is_handed_over: AtomicBool::default(),
        }
    }

    /// The files; none is added or removed while the guard lives.
    pub(super) fn lock_files(&self) -> RankedMutexGuard<'_, UnsettledFiles> {
        self.files.lock()
    }

    fn record(&self, ino: Ino, is_unsettled: bool) -> Unflushed {
        self.log.append(|| JournalEntry::Unsettled(ino.0, is_unsettled))
    }

    /// Records that a change of the file was given up, and may still be made.
    pub(super) fn add_abandoned(&self, ino: Ino) {
        let recorded = {
            let mut files = self.files.lock();
            *files.own_changes.entry(ino).or_default() += 1;
            self.record(ino, true)
        };
        self.log.flush(recorded);
    }

    /// A change that was given up has ended.
    pub(super) fn remove_abandoned(&self, ino: Ino) {
        let recorded = {
            let mut files = self.files.lock();
            let Some(left) = files.own_changes.get_mut(&ino) else { return };
            *left -= 1;
            if *left > 0 {
                return;
            }
            files.own_changes.remove(&ino);
            if files.earlier_daemons.contains(&ino) {
                return;
            }
            self.record(ino, false)
        };
        self.log.flush(recorded);
    }

    /// Declares that earlier daemons may not have ended, until `are_through` returns true.
    pub(super) fn set_earlier_daemons(&self, are_through: EarlierDaemonsEnded) {
        *self.earlier_daemons_ended.lock() = Some(are_through);
        self.has_earlier_daemons.store(true, Ordering::Release);
    }

    /// Adds the files that earlier daemons may be changing.
    pub(super) fn restore_files(&self, files: Vec<u64>) {
        if self.check_earlier_daemons() {
            self.files.lock().earlier_daemons.extend(files.into_iter().map(Ino));
        }
    }

    /// Records that the kernel sends a change of the file again: an earlier daemon may be making
    /// it.
    pub(super) fn add_resent(&self, ino: Ino) {
        if !self.check_earlier_daemons() {
            return;
        }
        let recorded = {
            let mut files = self.files.lock();
            match files.earlier_daemons.insert(ino) {
                true => self.record(ino, true),
                false => self.log.all_queued(),
            }
        };
        self.log.flush(recorded);
    }

    /// Declares that an earlier daemon may be making any change.
    pub(super) fn mark_all_in_doubt(&self) {
        self.is_all_in_doubt.store(true, Ordering::Release);
    }

    /// Whether an earlier daemon may be making any change.
    pub(super) fn is_all_blocked(&self) -> bool {
        self.has_earlier_daemons.load(Ordering::Acquire)
            && self.is_all_in_doubt.load(Ordering::Acquire)
            && self.check_earlier_daemons()
    }

    /// Whether an earlier daemon may be changing the file.
    pub(super) fn is_blocked(&self, ino: Ino) -> bool {
        self.has_earlier_daemons.load(Ordering::Acquire)
            && self.files.lock().earlier_daemons.contains(&ino)
            && self.check_earlier_daemons()
    }

    fn check_earlier_daemons(&self) -> bool {
        if !self.has_earlier_daemons.load(Ordering::Acquire) {
            return false;
        }
        let mut earlier = self.earlier_daemons_ended.lock();
        if earlier.as_ref().is_some_and(|are_through| !are_through()) {
            return true;
        }
        *earlier = None;
        self.has_earlier_daemons.store(false, Ordering::Release);
        self.files.lock().earlier_daemons.clear();
        false
    }

    /// Sets whether the next daemon makes the changes that have not begun.
    pub(super) fn set_handed_over(&self, it_does: bool) {
        self.is_handed_over.store(it_does, Ordering::Release);
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::journal_replay::recover_journal;
    use crate::fs::records::FsSnapshot;
    use crate::fs::step_log::RecordSnapshot;
    use crate::volume::VolumeMode;

    #[test]
    fn a_file_is_blocked_until_earlier_daemons_finish() {
        let unsettled = UnsettledChanges::new(Arc::default());
        let through = Arc::new(AtomicBool::new(false));
        unsettled.restore_files(vec![1]);
        unsettled.add_resent(Ino(2));
        assert!(
            !unsettled.is_blocked(Ino(1)) && !unsettled.is_blocked(Ino(2)),
            "there is no earlier one"
        );
        let are_through = Arc::clone(&through);
        unsettled.set_earlier_daemons(Box::new(move || are_through.load(Ordering::Acquire)));
        unsettled.restore_files(vec![1]);
        unsettled.add_resent(Ino(2));
        let held = |ino| unsettled.is_blocked(Ino(ino));
        assert_eq!([1, 2, 3].map(held), [true, true, false]);
        through.store(true, Ordering::Release);
        assert_eq!([1, 2, 3].map(held), [false; 3]);
        assert_eq!(unsettled.files.lock().inos(), [0; 0]);
    }

    #[test]
    fn in_doubt_all_files_wait_for_earlier_daemons() {
        let unsettled = UnsettledChanges::new(Arc::default());
        let through = Arc::new(AtomicBool::new(false));
        unsettled.mark_all_in_doubt();
        assert!(!unsettled.is_all_blocked(), "there is no earlier one");
        let are_through = Arc::clone(&through);
        unsettled.set_earlier_daemons(Box::new(move || are_through.load(Ordering::Acquire)));
        assert!(unsettled.is_all_blocked());
        through.store(true, Ordering::Release);
        assert!(!unsettled.is_all_blocked());
    }

    #[test]
    fn a_daemons_own_changes_are_counted() {
        let unsettled = UnsettledChanges::new(Arc::default());
        unsettled.add_abandoned(Ino(1));
        unsettled.add_abandoned(Ino(1));
        unsettled.remove_abandoned(Ino(1));
        assert_eq!(unsettled.files.lock().inos(), [1]);
        unsettled.remove_abandoned(Ino(1));
        assert_eq!(unsettled.files.lock().inos(), [0; 0]);
    }

    #[test]
    fn files_with_pending_changes_are_known_after_a_kill() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let log = Arc::<StepLog>::default();
        let unsettled = UnsettledChanges::new(Arc::clone(&log));
        let record = |queue: RecordSnapshot<'_>| {
            let files = unsettled.lock_files();
            queue(FsSnapshot { unsettled: files.inos(), ..FsSnapshot::default() })
        };
        log.start_journal(&path, Vec::new(), record).unwrap();
        let left = || recover_journal(&path, VolumeMode::Shared).unwrap().1.unsettled;
        unsettled.add_abandoned(Ino(5));
        unsettled.add_abandoned(Ino(6));
        unsettled.remove_abandoned(Ino(6));
        assert_eq!(left(), [5]);
        log.start_journal(&path, Vec::new(), record).unwrap();
        assert_eq!(left(), [5], "as a rewrite has it");
        unsettled.remove_abandoned(Ino(5));
        assert_eq!(left(), [0; 0]);
    }
}
