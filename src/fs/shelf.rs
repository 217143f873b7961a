//! Memory for the listings of open directories.
//!
//! It is claimed from the volume's budget, and never more of it than two shares: one for
//! listings that are kept whole until their directory is closed, one for windows. Users
//! who keep many directories open can fill the first; they cannot fill the second, as
//! windows that have not been used for a while are dropped for others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::handle::DirHandle;
use super::listing::FIRST;
use crate::buffer::{Budget, Buffer, Reservation};
use crate::read::Reader;

/// Memory for listings.
pub(super) struct Shelf {
    reader: Arc<Reader>,
    whole: Budget,
    windows: Budget,
    /// Directories that a window is kept for, by handle.
    kept: Mutex<HashMap<u64, Weak<DirHandle>>>,
}

/// A claim of a share, and of the budget.
pub(super) struct Claim {
    pub(super) share: Reservation,
    pub(super) budget: Reservation,
}

/// Each share is one part in so many of the budget. What incoming writes and locks may
/// have besides leaves reads the room of two of the largest requests.
const SHARE: u64 = 8;

/// A listing is kept whole where it takes no more than one part in so many of what is left
/// for such: large directories, however many, leave room for small ones.
const OF_WHAT_IS_LEFT: u64 = 4;

/// A window that was not used for so long may be dropped for a larger one. Longer than a
/// program that lists takes from one part of the listing to the next.
const IDLE: Duration = Duration::from_secs(1);

impl Shelf {
    pub(super) fn new(reader: Arc<Reader>) -> Self {
        let share = reader.budget().limit() / SHARE;
        let (whole, windows) = (Budget::new(share), Budget::new(share));
        Self { reader, whole, windows, kept: Mutex::default() }
    }

    /// The largest buffer of one listing: while it moves from one of half the size, both
    /// are there.
    pub(super) fn largest(&self) -> u64 {
        let most = self.windows.limit() * 8 / 15;
        if most < 2 * FIRST { FIRST } else { 1 << most.ilog2() }
    }

    /// Claims `bytes`; windows that are not in use make room.
    pub(super) fn claim(&self, bytes: u64) -> Option<Claim> {
        loop {
            if let Some(share) = self.windows.claim(bytes) {
                let budget = self.reader.claim(bytes)?;
                return Some(Claim { share, budget });
            }
            if !self.drop_oldest(IDLE) {
                return None;
            }
        }
    }

    /// Claims what a listing begins with, whatever has to be dropped for it; says whether
    /// it is within the budget. There are no more claims beyond it than threads that list.
    pub(super) fn first_claim(&self, bytes: u64) -> (Claim, bool) {
        loop {
            if let Some(claim) = self.claim(bytes) {
                return (claim, true);
            }
            if !self.drop_oldest(Duration::ZERO) {
                let (share, budget) = (self.windows.overdraw(0), self.reader.budget());
                return (Claim { share, budget: budget.overdraw(bytes) }, false);
            }
        }
    }

    /// A buffer of `bytes`; `None` where the system has no memory.
    pub(super) fn buffer(&self, bytes: u64, claim: Reservation) -> Option<Buffer> {
        self.reader.buffers().buffer(bytes as usize, claim).ok()
    }

    /// Claims the share for a listing that is to be kept whole; one that is `bound` to be
    /// so may take all that is left.
    pub(super) fn whole(&self, bytes: u64, bound: bool) -> Option<Reservation> {
        let left = self.whole.limit().saturating_sub(self.whole.used());
        let is_fair = bound || bytes <= left / OF_WHAT_IS_LEFT;
        if is_fair { self.whole.claim(bytes) } else { None }
    }

    /// A window is kept for a directory.
    pub(super) fn keeps(&self, handle: u64, dir: &Arc<DirHandle>) {
        let mut kept = self.kept.lock();
        if kept.len() == kept.capacity() {
            kept.retain(|_, dir| dir.upgrade().is_some_and(|dir| dir.idle().is_some()));
        }
        kept.insert(handle, Arc::downgrade(dir));
    }

    /// Drops the window that was used least lately, if that was `idle` ago; whether there
    /// was one.
    fn drop_oldest(&self, idle: Duration) -> bool {
        let mut kept = self.kept.lock();
        let oldest = kept
            .iter()
            .filter_map(|(handle, dir)| Some((dir.upgrade()?.idle()?, *handle)))
            .filter(|(unused, _)| *unused >= idle)
            .max();
        let Some((_, handle)) = oldest else { return false };
        let dir = kept.remove(&handle).and_then(|dir| dir.upgrade());
        drop(kept);
        dir.is_some_and(|dir| dir.drop_window())
    }
}
