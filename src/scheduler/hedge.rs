//! When a segment is late, and what a second read of it may cost.
//!
//! A segment is late when it takes [`PATIENCE`] times as long as it was expected
//! to when it was sent, and not before [`SOONEST`]. It may then be read from
//! another replica too, and the first answer counts. Second reads are paid from
//! a budget of one byte in twenty delivered; so when everything is slow they
//! cannot add more than 5 % to the load. For a replica that delivers nothing
//! while others do the budget may be overdrawn, by what some replicas may have
//! in flight; it is paid back later. Only the attempt deadline needs no payment.

use std::time::Duration;

/// Times the expected completion.
const PATIENCE: u32 = 4;

/// No hedge before this: below it a stall is not noticed by people and is
/// mostly scheduling noise.
pub const SOONEST: Duration = Duration::from_millis(250);

/// One byte of second reads for so many delivered.
const ONE_IN: u64 = 20;

/// Segments that may be hedged in one go, however much was delivered before.
const BURST: i64 = 8;

/// And so many more for each replica, where one delivers nothing while others do:
/// half of what it has in flight by default.
const OVERDRAFT: i64 = 3;

/// Whether an attempt of this age is late.
pub fn is_late(age: Duration, expected: Duration) -> bool {
    age >= SOONEST.max(expected * PATIENCE)
}

/// What is left for second reads.
#[derive(Clone, Debug)]
pub struct HedgeBudget {
    /// In bytes times [`ONE_IN`], to lose no fraction.
    tokens: i64,
    most: i64,
    least: i64,
}

impl HedgeBudget {
    /// A full budget for segments of this size and so many replicas.
    pub fn new(segment: u64, replicas: usize) -> Self {
        let one = (segment * ONE_IN) as i64;
        let most = one * BURST;
        Self { tokens: most, most, least: -one * OVERDRAFT * replicas as i64 }
    }

    /// So many bytes were delivered.
    pub fn earn(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes as i64).min(self.most);
    }

    /// Pays for a second read of `bytes`, if there is enough.
    pub fn spend(&mut self, bytes: u64) -> bool {
        self.take(bytes, 0)
    }

    /// The same for what is not urgent: leaves half for what is.
    pub fn spend_spare(&mut self, bytes: u64) -> bool {
        self.take(bytes, self.most / 2)
    }

    /// The same, with the overdraft.
    pub fn overdraw(&mut self, bytes: u64) -> bool {
        self.take(bytes, self.least)
    }

    fn take(&mut self, bytes: u64, least: i64) -> bool {
        let left = self.tokens - (bytes * ONE_IN) as i64;
        if left < least {
            return false;
        }
        self.tokens = left;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_reads_never_exceed_a_twentieth_after_the_first_burst() {
        let mut budget = HedgeBudget::new(1000, 3);
        while budget.spend(1000) {}
        let mut hedged = 0;
        for _ in 0..10_000 {
            budget.earn(1000);
            if budget.spend(1000) {
                hedged += 1;
            }
        }
        assert!((499..=500).contains(&hedged), "{hedged}");
    }

    #[test]
    fn the_overdraft_is_bounded_and_paid_back() {
        let mut budget = HedgeBudget::new(1000, 3);
        while budget.spend(1000) {}
        assert_eq!((0..100).filter(|_| budget.overdraw(1000)).count(), 9);
        budget.earn(100_000);
        assert!(!budget.spend(1000) && budget.overdraw(1000));
    }

    #[test]
    fn what_is_not_urgent_leaves_half_of_a_burst() {
        let mut budget = HedgeBudget::new(1000, 3);
        assert_eq!((0..100).filter(|_| budget.spend_spare(1000)).count(), 4);
        assert_eq!((0..100).filter(|_| budget.spend(1000)).count(), 4);
    }

    #[test]
    fn late_is_four_times_the_expected_but_not_below_a_quarter_second() {
        let ms = Duration::from_millis;
        assert!(!is_late(ms(249), ms(1)));
        assert!(is_late(ms(250), ms(1)));
        assert!(!is_late(ms(399), ms(100)));
        assert!(is_late(ms(400), ms(100)));
    }
}
