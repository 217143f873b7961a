//! The budget for file data, and the line of demands that wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Called with the reservation that a demand has waited for.
type GrantFn = Box<dyn FnOnce(Reservation) + Send>;

/// A limit on the bytes that may be claimed at once.
#[derive(Clone)]
pub struct Budget {
    inner: Arc<BudgetInner>,
}

struct BudgetInner {
    limit: u64,
    state: Mutex<BudgetState>,
    /// Whether any demand waits, readable without the lock.
    has_waiters: AtomicBool,
}

#[derive(Default)]
struct BudgetState {
    used: u64,
    /// By turn and order of arrival.
    waiters: BTreeMap<(u64, u64), (u64, GrantFn)>,
    next_sequence: u64,
}

/// A claim of some bytes; returned when dropped.
pub struct Reservation {
    inner: Arc<BudgetInner>,
    bytes: u64,
}

/// One part in this many of the budget is reserved for demands.
const DEMAND_SHARE: u64 = 8;

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let inner =
            BudgetInner { limit, state: Mutex::default(), has_waiters: AtomicBool::new(false) };
        Self { inner: Arc::new(inner) }
    }

    /// The size of the budget in bytes.
    pub fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// Bytes claimed now.
    pub fn used(&self) -> u64 {
        self.inner.state.lock().used
    }

    /// Claims `bytes` for a demand, if they are free and no demand waits in line.
    pub fn claim(&self, bytes: u64) -> Option<Reservation> {
        self.claim_below(bytes, self.inner.limit)
    }

    /// Claims `bytes` for readahead, which leaves an eighth of the budget to demands.
    pub fn claim_spare(&self, bytes: u64) -> Option<Reservation> {
        self.claim_below(bytes, self.inner.limit - self.inner.limit / DEMAND_SHARE)
    }

    /// Claims `bytes` if they are free, even if demands wait in line: for callers that cannot wait
    /// and can do without.
    pub fn claim_past_waiters(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.inner.state.lock();
        if state.used + bytes > self.inner.limit {
            return None;
        }
        state.used += bytes;
        Some(Reservation { inner: Arc::clone(&self.inner), bytes })
    }

    /// Claims `bytes` even if they are not free. Use it only for amounts that something else
    /// limits.
    pub fn overdraw(&self, bytes: u64) -> Reservation {
        self.inner.state.lock().used += bytes;
        Reservation { inner: Arc::clone(&self.inner), bytes }
    }

    fn claim_below(&self, bytes: u64, limit: u64) -> Option<Reservation> {
        let mut state = self.inner.state.lock();
        // A claim of nothing never waits.
        if bytes > 0 && (!state.waiters.is_empty() || state.used + bytes > limit) {
            return None;
        }
        state.used += bytes;
        Some(Reservation { inner: Arc::clone(&self.inner), bytes })
    }

    /// Waits in line for `bytes`; [`Budget::grant_waiters`] calls `grant` with them. Smaller turns
    /// go first. Turns must grow over time, so that every waiter is served. A claim larger than the
    /// whole budget is cut to it.
    pub fn enqueue_waiter(
        &self,
        turn: u64,
        bytes: u64,
        grant: impl FnOnce(Reservation) + Send + 'static,
    ) {
        let bytes = bytes.min(self.inner.limit);
        let mut state = self.inner.state.lock();
        state.next_sequence += 1;
        let place = (turn, state.next_sequence);
        state.waiters.insert(place, (bytes, Box::new(grant)));
        self.inner.has_waiters.store(true, Ordering::Release);
    }

    /// Whether any demand waits in line.
    pub fn has_waiters(&self) -> bool {
        self.inner.has_waiters.load(Ordering::Acquire)
    }

    /// Serves the line in order, until the budget is used up.
    ///
    /// Dropping a reservation does not do this by itself: a buffer may be dropped under any lock,
    /// and a grant takes locks. Call this without holding one.
    pub fn grant_waiters(&self) {
        while self.has_waiters() {
            let (bytes, grant) = {
                let mut state = self.inner.state.lock();
                let Some((&place, &(bytes, _))) = state.waiters.first_key_value() else {
                    self.inner.has_waiters.store(false, Ordering::Release);
                    return;
                };
                if state.used + bytes > self.inner.limit {
                    return;
                }
                state.used += bytes;
                state.waiters.remove(&place).expect("the line has a front")
            };
            grant(Reservation { inner: Arc::clone(&self.inner), bytes });
        }
    }

    /// The bytes that the first demand in line lacks; 0 if none waits.
    pub fn shortage(&self) -> u64 {
        let state = self.inner.state.lock();
        let wanted = state.waiters.values().next().map_or(0, |(bytes, _)| *bytes);
        (state.used + wanted).saturating_sub(self.inner.limit)
    }
}

impl Reservation {
    /// Bytes claimed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits up to `bytes` off into a claim of its own.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { inner: Arc::clone(&self.inner), bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.inner.state.lock().used -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_over_the_limit_is_refused_until_memory_is_freed() {
        let budget = Budget::new(100);
        let first = budget.claim(60).unwrap();
        assert!(budget.claim(41).is_none());
        let second = budget.claim(40).unwrap();
        assert_eq!(budget.used(), 100);
        drop((first, second));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn readahead_leaves_room_for_demands() {
        let budget = Budget::new(80);
        let spare = budget.claim_spare(70).unwrap();
        assert!(budget.claim_spare(1).is_none());
        assert!(budget.claim(10).is_some());
        drop(spare);
    }

    #[test]
    fn waiting_claims_are_served_in_order() {
        let budget = Budget::new(10);
        let all = budget.claim(10).unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        for (name, turn, bytes) in [("large", 0, 8), ("later", 7, 5), ("small", 0, 2)] {
            let served = Arc::clone(&served);
            budget.enqueue_waiter(turn, bytes, move |claim| served.lock().push((name, claim)));
        }
        budget.grant_waiters();
        assert!(served.lock().is_empty());
        drop(all);
        assert!(budget.claim(1).is_none(), "a newcomer jumped the line");
        budget.grant_waiters();
        assert_eq!(served.lock().iter().map(|(n, _)| *n).collect::<Vec<_>>(), ["large", "small"]);
        assert_eq!(budget.shortage(), 5);
        let done: Vec<_> = served.lock().drain(..).collect();
        drop(done);
        budget.grant_waiters();
        assert_eq!(served.lock()[0].0, "later");
        assert!(!budget.has_waiters() || budget.shortage() == 0);
    }

    #[test]
    fn a_claim_past_waiters_keeps_to_the_limit() {
        let budget = Budget::new(10);
        let held = budget.claim(8).unwrap();
        budget.enqueue_waiter(0, 5, drop);
        assert!(budget.claim(1).is_none() && budget.claim_past_waiters(3).is_none());
        let past = budget.claim_past_waiters(2).unwrap();
        let over = budget.overdraw(4);
        assert_eq!((budget.used(), budget.shortage()), (14, 9));
        drop((held, past, over));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_split_claim_is_released_part_by_part() {
        let budget = Budget::new(10);
        let mut claim = budget.claim(10).unwrap();
        let part = claim.split(4);
        assert_eq!((claim.bytes(), part.bytes()), (6, 4));
        drop(claim);
        assert_eq!(budget.used(), 4);
        drop(part);
        assert_eq!(budget.used(), 0);
    }
}
