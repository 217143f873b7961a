//! Permits for inline calls: calls on a replica by threads other than the replica's own.
//!
//! For a call on a quick replica, handing it to the replica's thread and waking the caller costs more
//! than the call itself. So an otherwise idle thread may make the call itself. The number of such
//! threads is limited, as a call on a hung replica does not return.
//!
//! *Invariant:* at most `max` inline calls are in progress. A thread without a permit queues its
//! call on the pool.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a thread yields before it does without a permit. With two, 32 random reads at a time
/// from a replica in memory reached 0.87 of mergerfs's rate; with eight, 0.96.
const MAX_YIELDS: usize = 8;

/// The number of inline calls in progress, and its limit.
#[derive(Debug)]
pub struct InlinePermits {
    max: usize,
    in_use: AtomicUsize,
}

/// Permission for one inline call, until dropped.
#[derive(Debug)]
pub struct InlinePermit<'a>(&'a InlinePermits);

impl InlinePermits {
    /// At most `most` at once; 0 disables inline calls.
    pub fn new(most: usize) -> Self {
        Self { max: most, in_use: AtomicUsize::new(0) }
    }

    /// A permit for one more call; `None` at the limit.
    pub fn try_acquire(&self) -> Option<InlinePermit<'_>> {
        let one_more = |inside| (inside < self.max).then_some(inside + 1);
        let entered = self.in_use.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        entered.ok().map(|_| InlinePermit(self))
    }

    /// The same; at the limit, lets other threads run a few times first. A call on a quick replica
    /// ends within microseconds, and waking another thread instead takes longer.
    pub fn acquire_soon(&self) -> Option<InlinePermit<'_>> {
        (0..MAX_YIELDS).find_map(|_| {
            let permit = self.try_acquire();
            if permit.is_none() {
                std::thread::yield_now();
            }
            permit
        })
    }

    /// The limit.
    pub fn limit(&self) -> usize {
        self.max
    }

    /// Inline calls in progress.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

impl Drop for InlinePermit<'_> {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_permits_never_exceed_their_limit() {
        let guests = InlinePermits::new(2);
        let first = guests.try_acquire().unwrap();
        let _second = guests.try_acquire().unwrap();
        assert!(guests.try_acquire().is_none());
        drop(first);
        assert!(guests.try_acquire().is_some());
        assert_eq!(guests.in_use(), 1);
        assert!(InlinePermits::new(0).try_acquire().is_none());
    }
}
