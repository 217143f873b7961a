//! A replacement for `crate::sync`. It does not check the order of locks: the check is per thread,
//! and all of shuttle's threads are one.

#[allow(dead_code)]
#[path = "../src/sync/lock_rank.rs"]
mod lock_rank;

pub(crate) use lock_rank::LockRank;
pub use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub use shuttle_parking_lot::{Mutex, MutexGuard, MutexGuard as RankedMutexGuard};

/// A mutex without its rank.
pub(crate) struct RankedMutex<T>(Mutex<T>);

impl<T> RankedMutex<T> {
    pub(crate) fn new(_: LockRank, value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}
