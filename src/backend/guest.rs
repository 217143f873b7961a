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
pub struct Guests {
    most: usize,
    inside: AtomicUsize,
}

/// Leave to be inside; ends when dropped.
#[derive(Debug)]
pub struct Guest<'a>(&'a Guests);

impl Guests {
    /// At most `most` at once; none where that is 0.
    pub fn new(most: usize) -> Self {
        Self { most, inside: AtomicUsize::new(0) }
    }

    /// Leave for one more; `None` where there are enough.
    pub fn enter(&self) -> Option<Guest<'_>> {
        let one_more = |inside| (inside < self.most).then_some(inside + 1);
        let entered = self.inside.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        entered.ok().map(|_| Guest(self))
    }

    /// Guests inside now.
    pub fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_enter_than_may() {
        let guests = Guests::new(2);
        let first = guests.enter().unwrap();
        let _second = guests.enter().unwrap();
        assert!(guests.enter().is_none());
        drop(first);
        assert!(guests.enter().is_some());
        assert_eq!(guests.inside(), 1);
        assert!(Guests::new(0).enter().is_none());
    }
}
