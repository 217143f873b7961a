//! Threads of others that may call a replica themselves.
//!
//! To hand a call to a replica's own thread and to be woken by it costs more
//! than a small read from a quick replica does. A thread that has nothing else
//! to do may make the call itself, as a guest, if so few do that enough are
//! left: a call on a hung replica does not come back.
//!
//! *Invariant:* no more guests are inside than were agreed on; whoever finds no
//! leave hands the call on as always.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many guests there are, and how many there may be.
#[derive(Debug)]
pub struct InlinePermits {
    max: usize,
    in_use: AtomicUsize,
}

/// Leave to be inside; ends when dropped.
#[derive(Debug)]
pub struct InlinePermit<'a>(&'a InlinePermits);

impl InlinePermits {
    /// At most `most` at once; none where that is 0.
    pub fn new(most: usize) -> Self {
        Self { max: most, in_use: AtomicUsize::new(0) }
    }

    /// Leave for one more; `None` where there are enough.
    pub fn try_acquire(&self) -> Option<InlinePermit<'_>> {
        let one_more = |inside| (inside < self.max).then_some(inside + 1);
        let entered = self.in_use.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        entered.ok().map(|_| InlinePermit(self))
    }

    /// Guests inside now.
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
    fn no_more_enter_than_may() {
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
