//! The locks and atomics by which threads hand things over, and the order of locks.
//!
//! This module names them so that `shuttle/` can replace them. Its versions decide which thread
//! continues at each lock and atomic. A test thus runs thousands of interleavings, and a failing
//! one can be repeated exactly.
//!
//! Locks that a thread may hold together are [`RankedMutex`]es. [`LockRank`] defines their order,
//! and a debug build panics if a thread takes them in another order. It also panics before a system
//! call under a lock that other threads may need to answer the kernel ([`before_io`]). A release
//! build checks nothing.

mod lock_rank;
mod ranked_mutex;

pub(crate) use lock_rank::LockRank;
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use ranked_mutex::{RankedMutex, RankedMutexGuard, before_io};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
