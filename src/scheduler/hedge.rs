//! When a segment is late, and what a second read of it may cost.
//!
//! A segment is late when it takes [`PATIENCE`] times as long as it was expected
//! to when it was sent, and not before [`SOONEST`]. It may then be read from
//! another replica too, and the first answer counts. Second reads are paid from
//! a budget of one byte in twenty delivered; so when everything is slow they
//! cannot add more than 5 % to the load. Two cases need no payment: a replica
//! that delivers nothing while others do, and the attempt deadline.

use std::time::Duration;

/// Times the expected completion.
const PATIENCE: u32 = 4;

/// No hedge before this: below it a stall is not noticed by people and is
/// mostly scheduling noise.
pub const SOONEST: Duration = Duration::from_millis(250);

/// One byte of second reads for so many delivered.
const ONE_IN: u64 = 20;

/// Segments that may be hedged in one go, however much was delivered before.
const BURST: u64 = 8;

/// Whether an attempt of this age is late.
pub fn is_late(age: Duration, expected: Duration) -> bool {
    age >= SOONEST.max(expected * PATIENCE)
}

/// What is left for second reads.
#[derive(Clone, Debug)]
pub struct HedgeBudget {
    /// In bytes times [`ONE_IN`], to lose no fraction.
    tokens: u64,
    most: u64,
}

impl HedgeBudget {
    /// A full budget for segments of this size.
    pub fn new(segment: u64) -> Self {
        let most = segment * BURST * ONE_IN;
        Self { tokens: most, most }
    }

    /// So many bytes were delivered.
    pub fn earn(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes).min(self.most);
    }

    /// Pays for a second read of `bytes`, if there is enough.
    pub fn spend(&mut self, bytes: u64) -> bool {
        let cost = bytes * ONE_IN;
        if self.tokens < cost {
            return false;
        }
        self.tokens -= cost;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_reads_never_exceed_a_twentieth_after_the_first_burst() {
        let mut budget = HedgeBudget::new(1000);
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
    fn late_is_four_times_the_expected_but_not_below_a_quarter_second() {
        let ms = Duration::from_millis;
        assert!(!is_late(ms(249), ms(1)));
        assert!(is_late(ms(250), ms(1)));
        assert!(!is_late(ms(399), ms(100)));
        assert!(is_late(ms(400), ms(100)));
    }
}
