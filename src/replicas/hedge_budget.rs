//! What second requests may cost.
//!
//! A second request goes to another replica while the first one is late. It is paid from a
//! budget that each delivery refills: one unit for [`DELIVERED_PER_HEDGED`] units delivered,
//! bytes for reads and calls for metadata. So when everything is slow, second requests cannot
//! add more than that to the load. Half of the budget is left to what is late by any measure.
//! For a replica that delivers nothing while others do the budget may be overdrawn, by
//! [`HedgeLimits::overdraft`]; it is paid back later.

use std::sync::atomic::{AtomicI64, Ordering};

/// One unit of second requests for so many delivered.
const DELIVERED_PER_HEDGED: u64 = 25;

/// How much a budget allows whatever was delivered, in bytes or calls.
#[derive(Clone, Copy, Debug)]
pub struct HedgeLimits {
    /// In one go.
    pub burst: u64,
    /// Beyond that, by [`HedgeBudget::overdraw`].
    pub overdraft: u64,
}

/// The budget for second requests. Threads may share it.
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

    /// So many units were delivered.
    pub fn refill(&self, units: u64) {
        self.add(units as i64);
    }

    /// Pays for `units` of second requests, if there is enough.
    pub fn spend(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, 0)
    }

    /// The same for what is not urgent: leaves half for what is.
    pub fn spend_low_priority(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, self.max_tokens / 2)
    }

    /// The same, with the overdraft.
    pub fn overdraw(&self, units: u64) -> Option<HedgePrice> {
        self.try_spend(units, self.min_tokens)
    }

    /// Returns the price of a second request that was not sent.
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
        // A full budget is the usual case, and stays unwritten.
        let add =
            |tokens: i64| Some((tokens + earned).min(self.max_tokens)).filter(|sum| *sum != tokens);
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

fn price_of(units: u64) -> i64 {
    (units * DELIVERED_PER_HEDGED) as i64
}

/// The price of a second request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgePrice(i64);

impl HedgePrice {
    /// Of a request that needs no payment.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HedgeLimits = HedgeLimits { burst: 8000, overdraft: 9000 };

    #[test]
    fn second_reads_never_exceed_their_share_after_the_first_burst() {
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
    fn the_overdraft_is_bounded_and_paid_back() {
        let budget = HedgeBudget::new(LIMITS);
        while budget.spend(1000).is_some() {}
        assert_eq!((0..100).filter(|_| budget.overdraw(1000).is_some()).count(), 9);
        budget.refill(100_000);
        assert!(budget.spend(1000).is_none() && budget.overdraw(1000).is_some());
    }

    #[test]
    fn what_is_not_urgent_leaves_half_of_a_burst() {
        let budget = HedgeBudget::new(LIMITS);
        assert_eq!((0..100).filter(|_| budget.spend_low_priority(1000).is_some()).count(), 4);
        assert_eq!((0..100).filter(|_| budget.spend(1000).is_some()).count(), 4);
    }

    #[test]
    fn what_was_not_requested_is_paid_back() {
        let budget = HedgeBudget::new(LIMITS);
        let price = budget.spend(8000).unwrap();
        assert!(budget.spend(1).is_none());
        budget.refund(price);
        budget.refund(HedgePrice::NONE);
        assert!(budget.spend(8001).is_none() && budget.spend(8000).is_some());
    }
}
