//! The budget for hedges.
//!
//! A hedge goes to another replica while the first one is late. A budget pays for it, and each
//! delivery refills the budget: one unit for [`DELIVERED_PER_HEDGED`] delivered units, in bytes for
//! reads and in calls for metadata. So when everything is slow, hedges add no more than that to the
//! load. Half of the budget is reserved for requests that are late by any measure. For a replica
//! that delivers nothing while others do, the budget may be overdrawn by
//! [`HedgeLimits::overdraft`]; later deliveries pay that back.

use std::sync::atomic::{AtomicI64, Ordering};

/// Delivered units that pay for one hedged unit.
const DELIVERED_PER_HEDGED: u64 = 25;

/// The limits of a budget, regardless of deliveries; in bytes or calls.
#[derive(Clone, Copy, Debug)]
pub struct HedgeLimits {
    /// The full budget.
    pub burst: u64,
    /// The most below zero, by [`HedgeBudget::overdraw`].
    pub overdraft: u64,
}

/// The budget for hedges. Threads may share it.
#[derive(Debug)]
pub struct HedgeBudget {
    /// In units times [`DELIVERED_PER_HEDGED`], to lose no fraction.
    tokens: AtomicI64,
    max_tokens: i64,
    min_tokens: i64,
}

impl HedgeBudget {
    /// A full budget.
    pub fn new(limits: HedgeLimits) -> Self {
        let max_tokens = price_of(limits.burst);
        Self {
            tokens: AtomicI64::new(max_tokens),
            max_tokens,
            min_tokens: -price_of(limits.overdraft),
        }
    }

    /// Refills the budget for `units` delivered.
    pub fn refill(&self, units: u64) {
        self.add(units as i64);
    }

    /// Pays for hedges of `units`, if the budget suffices.
    pub fn spend(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, 0)
    }

    /// The same for a less urgent hedge: leaves half of the full budget.
    pub fn spend_low_priority(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, self.max_tokens / 2)
    }

    /// The same, but may use the overdraft.
    pub fn overdraw(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, self.min_tokens)
    }

    /// Returns the price of a hedge that was not sent.
    pub fn refund(&self, HedgePrice(tokens): HedgePrice) {
        self.add(tokens);
    }

    fn try_spend(&self, units: u64, least: i64) -> Option<HedgePrice> {
        let price = price_of(units);
        let spend = |tokens: i64| Some(tokens - price).filter(|left| *left >= least);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).ok()?;
        Some(HedgePrice(price))
    }

    fn add(&self, earned: i64) {
        // A full budget is the usual case, and needs no write.
        let add =
            |tokens: i64| Some((tokens + earned).min(self.max_tokens)).filter(|sum| *sum != tokens);
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

fn price_of(units: u64) -> i64 {
    (units * DELIVERED_PER_HEDGED) as i64
}

/// The price of a hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgePrice(i64);

impl HedgePrice {
    /// The price of a free hedge.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HedgeLimits = HedgeLimits { burst: 8000, overdraft: 9000 };

    #[test]
    fn hedges_stay_within_their_share_after_the_burst() {
        let budget = HedgeBudget::new(LIMITS);
        while budget.spend(1000).is_some() {}
        let mut hedged = 0;
        for _ in 0..10_000 {
            budget.refill(1000);
            if budget.spend(1000).is_some() {
                hedged += 1;
            }
        }
        assert!((399..=400).contains(&hedged), "{hedged}");
    }

    #[test]
    fn the_hedge_overdraft_is_bounded_and_repaid() {
        let budget = HedgeBudget::new(LIMITS);
        while budget.spend(1000).is_some() {}
        assert_eq!((0..100).filter(|_| budget.overdraw(1000).is_some()).count(), 9);
        budget.refill(100_000);
        assert!(budget.spend(1000).is_none() && budget.overdraw(1000).is_some());
    }

    #[test]
    fn low_priority_hedges_leave_half_of_the_burst() {
        let budget = HedgeBudget::new(LIMITS);
        assert_eq!((0..100).filter(|_| budget.spend_low_priority(1000).is_some()).count(), 4);
        assert_eq!((0..100).filter(|_| budget.spend(1000).is_some()).count(), 4);
    }

    #[test]
    fn unused_hedge_budget_is_refunded() {
        let budget = HedgeBudget::new(LIMITS);
        let price = budget.spend(8000).unwrap();
        assert!(budget.spend(1).is_none());
        budget.refund(price);
        budget.refund(HedgePrice::NONE);
        assert!(budget.spend(8001).is_none() && budget.spend(8000).is_some());
    }
}
