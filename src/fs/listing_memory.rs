//! Memory for the listings of open directories.
//!
//! It is claimed from the volume's budget, and never more of it than two shares: one for
//! listings that are kept whole until their directory is closed, one for windows. Users
//! who keep many directories open can fill the first; they cannot fill the second, as
//! windows that have not been used for a while are dropped for others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::buffer::{Budget, Buffer, Reservation};
use crate::read::Reader;
use crate::sync::{LockRank, RankedMutex};

/// Memory for listings.
pub(super) struct ListingMemory {
    reader: Arc<Reader>,
    whole_budget: Budget,
    window_budget: Budget,
    /// Where windows are kept, by the handles of their directories.
    windows: RankedMutex<HashMap<u64, Weak<dyn WindowKeeper>>>,
}

/// Keeps a window of a directory's entries for its readers.
pub(super) trait WindowKeeper: Send + Sync {
    /// How long ago the window was used; `None` where none is kept.
    fn window_idle_time(&self) -> Option<Duration>;

    /// Drops the window; whether one was kept.
    fn drop_window(&self) -> bool;
}

/// A claim of a share, and of the budget.
pub(super) struct ListingClaim {
    pub(super) share: Reservation,
    pub(super) budget: Reservation,
}

/// A listing's first allocation, bytes: some hundred entries.
pub(super) const INITIAL_BUFFER_SIZE: u64 = 16 << 10;

/// Each share is one part in so many of the budget. What incoming writes and locks may
/// have besides leaves reads the room of two of the largest requests.
const BUDGET_DIVISOR: u64 = 8;

/// A listing is kept whole where it takes no more than one part in so many of what is left
/// for such: large directories, however many, leave room for small ones.
const MAX_WHOLE_DIVISOR: u64 = 4;

/// A window that was not used for so long may be dropped for a larger one. Longer than a
/// program that lists takes from one part of the listing to the next.
const MIN_WINDOW_IDLE: Duration = Duration::from_secs(1);

impl ListingMemory {
    pub(super) fn new(reader: Arc<Reader>) -> Self {
        let share = reader.budget().limit() / BUDGET_DIVISOR;
        let whole = Budget::new(share);
        let windows = Budget::new(share);
        let keepers = RankedMutex::new(LockRank::ListingWindows, HashMap::new());
        Self { reader, whole_budget: whole, window_budget: windows, windows: keepers }
    }

    /// The largest buffer of one listing: while it moves from one of half the size, both
    /// are there.
    pub(super) fn max_buffer_size(&self) -> u64 {
        let most = self.window_budget.limit() * 8 / 15;
        if most < 2 * INITIAL_BUFFER_SIZE { INITIAL_BUFFER_SIZE } else { 1 << most.ilog2() }
    }

    /// Claims `bytes`; windows that are not in use make room.
    pub(super) fn claim(&self, bytes: u64) -> Option<ListingClaim> {
        loop {
            if let Some(share) = self.window_budget.claim(bytes) {
                let budget = self.reader.claim_memory(bytes)?;
                return Some(ListingClaim { share, budget });
            }
            if !self.drop_oldest_window(MIN_WINDOW_IDLE) {
                return None;
            }
        }
    }

    /// Claims what a listing begins with, whatever has to be dropped for it; says whether
    /// it is within the budget. There are no more claims beyond it than threads that list.
    pub(super) fn claim_first(&self, bytes: u64) -> (ListingClaim, bool) {
        loop {
            if let Some(claim) = self.claim(bytes) {
                return (claim, true);
            }
            if !self.drop_oldest_window(Duration::ZERO) {
                let share = self.window_budget.overdraw(0);
                let budget = self.reader.budget();
                return (ListingClaim { share, budget: budget.overdraw(bytes) }, false);
            }
        }
    }

    /// A buffer of `bytes`; `None` where the system has no memory.
    pub(super) fn buffer(&self, bytes: u64, claim: Reservation) -> Option<Buffer> {
        self.reader.buffers().allocate(bytes as usize, claim).ok()
    }

    /// Claims the share for a listing that is to be kept whole; one that is `bound` to be
    /// so may take all that is left.
    pub(super) fn claim_whole(&self, bytes: u64, bound: bool) -> Option<Reservation> {
        let left = self.whole_budget.limit().saturating_sub(self.whole_budget.used());
        let is_fair = bound || bytes <= left / MAX_WHOLE_DIVISOR;
        if is_fair { self.whole_budget.claim(bytes) } else { None }
    }

    /// A window is kept for the directory that is open by this handle.
    pub(super) fn track_window(&self, handle: u64, keeper: Weak<dyn WindowKeeper>) {
        let mut kept = self.windows.lock();
        if kept.len() == kept.capacity() {
            kept.retain(|_, keeper| {
                keeper.upgrade().is_some_and(|keeper| keeper.window_idle_time().is_some())
            });
        }
        kept.insert(handle, keeper);
    }

    /// Drops the window that was used least lately, if that was `idle` ago; whether there
    /// was one.
    fn drop_oldest_window(&self, idle: Duration) -> bool {
        let mut kept = self.windows.lock();
        let oldest = kept
            .iter()
            .filter_map(|(handle, keeper)| Some((keeper.upgrade()?.window_idle_time()?, *handle)))
            .filter(|(unused, _)| *unused >= idle)
            .max();
        let Some((_, handle)) = oldest else { return false };
        let keeper = kept.remove(&handle).and_then(|keeper| keeper.upgrade());
        drop(kept);
        keeper.is_some_and(|keeper| keeper.drop_window())
    }
}
