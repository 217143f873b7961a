//! Memory for the listings of open directories.
//!
//! Listings claim memory from the volume's budget, and are limited to two shares of it. One is for
//! listings that are kept whole until their directory is closed, the other for windows. Users that
//! keep many directories open can fill the first share. They cannot fill the second, as windows
//! that were not used for a while are evicted for others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::buffer::{Budget, Buffer, Reservation};
use crate::read::Reader;
use crate::sync::{LockRank, RankedMutex};

pub(super) struct ListingMemory {
    reader: Arc<Reader>,
    whole_budget: Budget,
    window_budget: Budget,
    /// The caches that keep a window, by the handles of their directories.
    windows: RankedMutex<HashMap<u64, Weak<dyn WindowKeeper>>>,
}

/// A cache that keeps a window of a directory's entries for its readers.
pub(super) trait WindowKeeper: Send + Sync {
    /// The time since the window was last used; `None` if there is none.
    fn window_idle_time(&self) -> Option<Duration>;

    /// Drops the window; returns whether there was one.
    fn drop_window(&self) -> bool;
}

/// A claim on a share, and on the budget.
pub(super) struct ListingClaim {
    pub(super) share: Reservation,
    pub(super) budget: Reservation,
}

/// A listing's first allocation, bytes: some hundred entries.
pub(super) const INITIAL_BUFFER_SIZE: u64 = 16 << 10;

/// Each share is the budget divided by this. With the shares of incoming writes and of locks, it
/// leaves reads enough for two of the largest requests.
const BUDGET_DIVISOR: u64 = 8;

/// A listing is kept whole if it takes at most the rest of the share divided by this. So large
/// directories, however many, leave room for small ones.
const MAX_WHOLE_DIVISOR: u64 = 4;

/// A window that was idle for this time may be evicted for another listing. A program that lists
/// takes less time from one part of the listing to the next.
const MIN_WINDOW_IDLE: Duration = Duration::from_secs(1);

impl ListingMemory {
    pub(super) fn new(reader: Arc<Reader>) -> Self {
        let share = reader.budget().limit() / BUDGET_DIVISOR;
        let whole = Budget::new(share);
        let windows = Budget::new(share);
        let keepers = RankedMutex::new(LockRank::ListingWindows, HashMap::new());
        Self { reader, whole_budget: whole, window_budget: windows, windows: keepers }
    }

    /// The largest buffer of one listing, bytes: while a listing moves to a buffer of twice the
    /// size, both buffers exist.
    pub(super) fn max_buffer_size(&self) -> u64 {
        let most = self.window_budget.limit() * 8 / 15;
        if most < 2 * INITIAL_BUFFER_SIZE { INITIAL_BUFFER_SIZE } else { 1 << most.ilog2() }
    }

    /// Claims `bytes`; evicts idle windows if necessary.
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

    /// Claims the first buffer of a listing, and evicts any window for it. The second value is
    /// whether the claim is within the budget. Claims beyond it are limited by the number of
    /// threads that list.
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

    /// A buffer of `bytes`; `None` if the system has no memory.
    pub(super) fn buffer(&self, bytes: u64, claim: Reservation) -> Option<Buffer> {
        self.reader.buffers().allocate(bytes as usize, claim).ok()
    }

    /// Claims the share for a listing that is kept whole. If it is `bound` to be whole, it may take
    /// the whole rest of the share.
    pub(super) fn claim_whole(&self, bytes: u64, bound: bool) -> Option<Reservation> {
        let left = self.whole_budget.limit().saturating_sub(self.whole_budget.used());
        let is_fair = bound || bytes <= left / MAX_WHOLE_DIVISOR;
        if is_fair { self.whole_budget.claim(bytes) } else { None }
    }

    /// Records that the directory that is open by this handle keeps a window.
    pub(super) fn track_window(&self, handle: u64, keeper: Weak<dyn WindowKeeper>) {
        let mut kept = self.windows.lock();
        if kept.len() == kept.capacity() {
            kept.retain(|_, keeper| {
                keeper.upgrade().is_some_and(|keeper| keeper.window_idle_time().is_some())
            });
        }
        kept.insert(handle, keeper);
    }

    /// Evicts the window that was idle longest, if that is at least `idle`; returns whether one was
    /// evicted.
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
