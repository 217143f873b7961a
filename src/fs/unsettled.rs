//! Files that a change may still reach although its caller was answered.
//!
//! A change that hangs in the write replica is given up at its deadline, and made when the
//! replica answers again: by a thread of this daemon, or of an earlier daemon that has not
//! ended. Until then no newer change of that file may be made; the older one would
//! overwrite it. [`super::written::Gate`] asks here before each change.
//!
//! An earlier daemon leaves the list of these files with its tables. The kernel adds the
//! changes that it had not answered: it sends them again.
//!
//! Where the next daemon has another write replica, or has no list, any change is in doubt:
//! no change at all is made until the earlier daemons are through. Two replicas do not keep
//! changes in order.
//!
//! *Invariant:* the journal lists a file before the kernel learns that a change of it was
//! given up, and a file is taken off the list when no thread can change it any more.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Ino;
use super::journal::{Entry, Journal};

/// Says whether all earlier daemons have left the write replica.
type AreThrough = Box<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
pub(super) struct Unsettled {
    files: Arc<Mutex<Files>>,
    journal: OnceLock<Arc<Journal>>,
    earlier: Mutex<Option<AreThrough>>,
    /// Whether there is an `earlier`, for a look without the lock.
    has_earlier: AtomicBool,
    /// Whether an earlier daemon may be making any change.
    is_all_in_doubt: AtomicBool,
    /// Whether the next daemon makes the changes that have not begun.
    is_left: AtomicBool,
}

/// The files.
#[derive(Default)]
pub(super) struct Files {
    /// Changes of this daemon that were given up and have not ended.
    own: HashMap<Ino, usize>,
    /// Those that an earlier daemon may be changing.
    earlier: HashSet<Ino>,
}

impl Files {
    /// All of them.
    pub(super) fn all(&self) -> Vec<u64> {
        let all: HashSet<Ino> = self.own.keys().chain(&self.earlier).copied().collect();
        all.into_iter().map(|ino| ino.0).collect()
    }
}

impl Unsettled {
    /// The files, for a journal.
    pub(super) fn files(&self) -> Arc<Mutex<Files>> {
        Arc::clone(&self.files)
    }

    /// Writes down from now on which files there are.
    pub(super) fn write_down(&self, journal: Arc<Journal>) {
        let _ = self.journal.set(journal);
    }

    fn note(&self, ino: Ino, is_unsettled: bool) {
        if let Some(journal) = self.journal.get() {
            journal.append(&Entry::Unsettled(ino.0, is_unsettled));
        }
    }

    /// A change of the file is given up, and may be made later.
    pub(super) fn gives_up(&self, ino: Ino) {
        let mut files = self.files.lock();
        *files.own.entry(ino).or_default() += 1;
        self.note(ino, true);
    }

    /// A change that was given up has ended.
    pub(super) fn ended(&self, ino: Ino) {
        let mut files = self.files.lock();
        let Some(left) = files.own.get_mut(&ino) else { return };
        *left -= 1;
        if *left == 0 {
            files.own.remove(&ino);
            if !files.earlier.contains(&ino) {
                self.note(ino, false);
            }
        }
    }

    /// There are earlier daemons that have not ended, until `are_through` says so.
    pub(super) fn follow(&self, are_through: AreThrough) {
        *self.earlier.lock() = Some(are_through);
        self.has_earlier.store(true, Ordering::Release);
    }

    /// They may be changing these files.
    pub(super) fn inherit(&self, files: Vec<u64>) {
        if self.has_earlier() {
            self.files.lock().earlier.extend(files.into_iter().map(Ino));
        }
    }

    /// The kernel sends a change of the file again: an earlier daemon may be making it.
    pub(super) fn comes_again(&self, ino: Ino) {
        if self.has_earlier() {
            let mut files = self.files.lock();
            if files.earlier.insert(ino) {
                self.note(ino, true);
            }
        }
    }

    /// An earlier daemon may be making any change.
    pub(super) fn doubt_all(&self) {
        self.is_all_in_doubt.store(true, Ordering::Release);
    }

    /// Whether an earlier daemon may be making any change.
    pub(super) fn holds_all(&self) -> bool {
        self.has_earlier.load(Ordering::Acquire)
            && self.is_all_in_doubt.load(Ordering::Acquire)
            && self.has_earlier()
    }

    /// Whether an earlier daemon may be changing the file.
    pub(super) fn holds(&self, ino: Ino) -> bool {
        self.has_earlier.load(Ordering::Acquire)
            && self.files.lock().earlier.contains(&ino)
            && self.has_earlier()
    }

    fn has_earlier(&self) -> bool {
        if !self.has_earlier.load(Ordering::Acquire) {
            return false;
        }
        let mut earlier = self.earlier.lock();
        if earlier.as_ref().is_some_and(|are_through| !are_through()) {
            return true;
        }
        *earlier = None;
        self.has_earlier.store(false, Ordering::Release);
        self.files.lock().earlier.clear();
        false
    }

    /// The next daemon makes what has not begun, or it does not.
    pub(super) fn leave(&self, it_does: bool) {
        self.is_left.store(it_does, Ordering::Release);
    }

    /// Whether the next daemon makes what has not begun.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_until_the_earlier_daemons_are_through() {
        let (unsettled, through) = (Unsettled::default(), Arc::new(AtomicBool::new(false)));
        unsettled.inherit(vec![1]);
        unsettled.comes_again(Ino(2));
        assert!(!unsettled.holds(Ino(1)) && !unsettled.holds(Ino(2)), "there is no earlier one");
        let are_through = Arc::clone(&through);
        unsettled.follow(Box::new(move || are_through.load(Ordering::Acquire)));
        unsettled.inherit(vec![1]);
        unsettled.comes_again(Ino(2));
        let held = |ino| unsettled.holds(Ino(ino));
        assert_eq!([1, 2, 3].map(held), [true, true, false]);
        through.store(true, Ordering::Release);
        assert_eq!([1, 2, 3].map(held), [false; 3]);
        assert_eq!(unsettled.files.lock().all(), [0; 0]);
    }

    #[test]
    fn in_doubt_nothing_is_changed_until_the_earlier_daemons_are_through() {
        let (unsettled, through) = (Unsettled::default(), Arc::new(AtomicBool::new(false)));
        unsettled.doubt_all();
        assert!(!unsettled.holds_all(), "there is no earlier one");
        let are_through = Arc::clone(&through);
        unsettled.follow(Box::new(move || are_through.load(Ordering::Acquire)));
        assert!(unsettled.holds_all());
        through.store(true, Ordering::Release);
        assert!(!unsettled.holds_all());
    }

    #[test]
    fn own_changes_are_counted() {
        let unsettled = Unsettled::default();
        unsettled.gives_up(Ino(1));
        unsettled.gives_up(Ino(1));
        unsettled.ended(Ino(1));
        assert_eq!(unsettled.files.lock().all(), [1]);
        unsettled.ended(Ino(1));
        assert_eq!(unsettled.files.lock().all(), [0; 0]);
    }
}
