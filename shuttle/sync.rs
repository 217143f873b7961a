//! What stands for `crate::sync`. The order of locks is checked in debug builds alone, by
//! thread: all of shuttle's threads are one.

#[allow(dead_code)]
#[path = "../src/sync/lock_rank.rs"]
mod lock_rank;
#[allow(dead_code)]
#[path = "../src/sync/ranked_mutex.rs"]
mod ranked_mutex;

pub(crate) use lock_rank::LockRank;
pub(crate) use ranked_mutex::RankedMutex;
pub use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub use shuttle_parking_lot::{Mutex, MutexGuard};
