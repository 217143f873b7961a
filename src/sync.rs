//! Locks and atomics of what hands things over between threads, and the order of locks.
//!
//! A name for them, so that `shuttle/` can put others in their place, which
//! decide themselves which thread goes on at each of them: it goes through thousands
//! of orders in which threads may meet, and one that fails is the same each time.
//!
//! Locks that a thread may hold together are [`RankedMutex`]es. Their order is that of
//! [`LockRank`], and a debug build panics where a thread takes them in another one. It also
//! panics where a thread is about to make a system call under a lock that others may need
//! to answer the kernel ([`before_io`]). A release build checks nothing.

mod lock_rank;
mod ranked_mutex;

pub(crate) use lock_rank::LockRank;
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use ranked_mutex::{RankedMutex, RankedMutexGuard, before_io};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
