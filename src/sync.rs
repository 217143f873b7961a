//! Locks and atomics of what hands things over between threads.
//!
//! A name for them, so that `shuttle/` can put others in their place, which
//! decide themselves which thread goes on at each of them: it goes through thousands
//! of orders in which threads may meet, and one that fails is the same each time.

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
