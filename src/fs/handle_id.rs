//! How the kernel names a handle.
//!
//! The kernel sends a handle's number and, with each operation, the inode that the handle is open
//! on. A daemon may not know all numbers that the daemon before it issued, so a number alone could
//! name another file. So number and inode must both match. The upper half of a number identifies
//! the daemon that issued it: each daemon draws its own prefix at random.
//!
//! *Invariant:* no number is issued twice for one mount, even if a daemon does not know the numbers
//! of earlier daemons. An operation reaches a handle only by its own inode.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::ino::Ino;

/// A handle, as an operation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId {
    /// The number that the open returned to the kernel.
    pub number: u64,
    /// The inode that the operation is on.
    pub ino: Ino,
}

impl HandleId {
    /// Whether the kernel has not opened the file: no handle has this number.
    pub fn is_unopened(self) -> bool {
        self.number == 0
    }
}

/// Issues the numbers.
pub(super) struct HandleNumbers(AtomicU64);

/// The lower half is a counter; no daemon opens 2^32 files in its life.
const COUNTER_BITS: u32 = 32;

impl Default for HandleNumbers {
    fn default() -> Self {
        Self(AtomicU64::new(draw_prefix(&HashSet::new())))
    }
}

/// A start value for the counter: a random prefix that is not in `others`, and 0.
fn draw_prefix(others: &HashSet<u64>) -> u64 {
    loop {
        // Keyed by the kernel's random numbers, differently for each process.
        let drawn = RandomState::new().hash_one(0) >> COUNTER_BITS;
        if drawn != 0 && !others.contains(&drawn) {
            return drawn << COUNTER_BITS;
        }
    }
}

impl HandleNumbers {
    /// A number that no daemon of this mount has issued.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The last one that was issued.
    pub(super) fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Draws another prefix if one of the `issued` numbers, of other daemons, has this one's.
    pub(super) fn avoid_issued(&self, issued: impl Iterator<Item = u64>) {
        let others: HashSet<u64> = issued.map(|number| number >> COUNTER_BITS).collect();
        if others.contains(&(self.last() >> COUNTER_BITS)) {
            self.0.store(draw_prefix(&others), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_daemons_issue_the_same_numbers() {
        let first = HandleNumbers::default();
        let issued = [first.next(), first.next()];
        assert_eq!(issued[1], issued[0] + 1);
        let second = HandleNumbers(AtomicU64::new(first.last()));
        second.avoid_issued(issued.into_iter());
        assert_ne!(second.next() >> COUNTER_BITS, issued[0] >> COUNTER_BITS);
        let other = HandleNumbers::default();
        let drawn = other.last();
        assert!(drawn != 0 && drawn % (1 << COUNTER_BITS) == 0);
        other.avoid_issued([drawn ^ (1 << 63)].into_iter());
        assert_eq!(other.last(), drawn, "it need not be drawn again");
    }
}
