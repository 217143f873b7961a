//! A mutex that knows its place in the order of locks.

use std::ops::{Deref, DerefMut};

use super::{LockRank, Mutex, MutexGuard};

pub(crate) struct RankedMutex<T> {
    #[cfg(debug_assertions)]
    rank: LockRank,
    mutex: Mutex<T>,
}

/// Unlocks the mutex when dropped.
pub(crate) struct RankedMutexGuard<'a, T> {
    value: MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    _held: held::HeldRank,
}

impl<T> RankedMutex<T> {
    /// A mutex that a thread takes after all mutexes of lower ranks.
    #[inline]
    pub(crate) fn new(rank: LockRank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            mutex: Mutex::new(value),
        }
    }

    /// Waits for the mutex.
    ///
    /// # Panics In a debug build, if the thread holds a mutex of the same or of a higher rank.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::assert_none_from(self.rank);
        RankedMutexGuard {
            value: self.mutex.lock(),
            #[cfg(debug_assertions)]
            _held: held::HeldRank::new(self.rank),
        }
    }
}

impl<T> RankedMutex<T> {
    /// The mutex, if it is free.
    ///
    /// # Panics
    /// As [`RankedMutex::lock`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
        #[cfg(debug_assertions)]
        held::assert_none_from(self.rank);
        Some(RankedMutexGuard {
            value: self.mutex.try_lock()?,
            #[cfg(debug_assertions)]
            _held: held::HeldRank::new(self.rank),
        })
    }
}

impl<T> Deref for RankedMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RankedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Call this before a system call that may take time.
///
/// # Panics In a debug build, if the thread holds a lock that forbids such calls.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn before_io(call: &str) {
    #[cfg(debug_assertions)]
    held::assert_io_allowed(call);
    #[cfg(not(debug_assertions))]
    let _ = call;
}

/// The locks that each thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;
    use std::marker::PhantomData;

    use super::LockRank;

    thread_local! {
        static HELD: RefCell<Vec<LockRank>> = const { RefCell::new(Vec::new()) };
    }

    /// Records that the thread holds a lock of this rank.
    pub(super) struct HeldRank {
        rank: LockRank,
        /// Makes it not `Send`: the record belongs to this thread.
        _here: PhantomData<*const ()>,
    }

    impl HeldRank {
        pub(super) fn new(rank: LockRank) -> Self {
            HELD.with_borrow_mut(|held| held.push(rank));
            Self { rank, _here: PhantomData }
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(last) = held.iter().rposition(|rank| *rank == self.rank) {
                    held.remove(last);
                }
            });
        }
    }

    #[track_caller]
    pub(super) fn assert_none_from(rank: LockRank) {
        let held = HELD.with_borrow(|held| held.iter().copied().max());
        if let Some(highest) = held.filter(|highest| *highest >= rank) {
            panic!("{rank:?} is locked by a thread that holds {highest:?}");
        }
    }

    #[track_caller]
    pub(super) fn assert_io_allowed(call: &str) {
        let held = HELD.with_borrow(|held| held.iter().copied().find(|rank| rank.forbids_io()));
        if let Some(rank) = held {
            panic!("{call} under the lock {rank:?}");
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn message(work: impl FnOnce()) -> Option<String> {
        let panicked = catch_unwind(AssertUnwindSafe(work)).err()?;
        panicked.downcast_ref::<String>().cloned()
    }

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let inodes = RankedMutex::new(LockRank::Inodes, 1);
        let handles = RankedMutex::new(LockRank::Handles, 2);
        let in_order = || {
            let first = inodes.lock();
            assert_eq!(*first + *handles.lock(), 3);
        };
        in_order();
        let wrong = message(|| {
            let _second = handles.lock();
            let _first = inodes.lock();
        });
        assert_eq!(wrong.unwrap(), "Inodes is locked by a thread that holds Handles");
        let others = RankedMutex::new(LockRank::Inodes, 3);
        let both = message(|| {
            let _first = inodes.lock();
            let _second = others.lock();
        });
        assert!(both.is_some(), "which of two of one rank comes first is not said");
        in_order();
    }

    #[test]
    fn guards_may_be_dropped_in_any_order() {
        let inodes = RankedMutex::new(LockRank::Inodes, ());
        let handles = RankedMutex::new(LockRank::Handles, ());
        let first = inodes.lock();
        let second = handles.lock();
        drop(first);
        assert!(message(|| drop(inodes.lock())).is_some(), "the other one is still held");
        drop(second);
        drop(inodes.lock());
    }

    #[test]
    fn no_system_call_is_made_under_the_inode_tables_lock() {
        let inodes = RankedMutex::new(LockRank::Inodes, ());
        let call = || before_io("a notice to the kernel");
        let under_lock = message(|| {
            let _inodes = inodes.lock();
            call();
        });
        assert_eq!(under_lock.unwrap(), "a notice to the kernel under the lock Inodes");
        let file = RankedMutex::new(LockRank::JournalFile, ());
        let _writing = file.lock();
        call();
    }
}
