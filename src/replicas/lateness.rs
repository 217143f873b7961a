//! When a segment or a call is late.
//!
//! A segment is late when it takes [`MAX_LATE_FACTOR`] times as long as it was expected
//! to when it was sent, and not before [`MIN_LATE_AGE`]. What a reader waits for is so
//! sooner, where there is another copy: in as many times as one in a hundred of
//! its replica's own reads exceeds, twice ([`LatenessHistogram`]), and not before
//! [`MIN_HEDGE_DELAY`]. It may then be read from another replica too, and the first answer
//! counts. What that may cost is limited by [`super::hedge_budget`]; only the attempt
//! deadline needs no payment.

use std::time::Duration;

/// Times the expected completion, while little is known of a replica, and at most.
const MAX_LATE_FACTOR: f64 = 4.0;

/// And at least: what is expected is a mean.
const MIN_LATE_FACTOR: f64 = 2.0;

/// No hedge before this, whoever waits. Below it a stall is mostly this machine's
/// own: the daemon may not get a processor for tens of milliseconds.
pub const MIN_HEDGE_DELAY: Duration = Duration::from_millis(100);

/// Nothing is late before this by any measure: below it a stall is not noticed by
/// people.
const MIN_LATE_AGE: Duration = Duration::from_millis(250);

/// Whether an attempt of this age is late by any measure.
pub fn is_late(age: Duration, expected: Duration) -> bool {
    age >= MIN_LATE_AGE.max(expected.mul_f64(MAX_LATE_FACTOR))
}

/// What is known of the replica that an attempt is on.
#[derive(Clone, Copy, Debug)]
pub struct LatenessLimit {
    /// Times the expected completion; see [`LatenessHistogram::late_factor`].
    pub late_factor: f64,
    /// Whether it has failed or was late lately.
    pub is_suspect: bool,
}

/// Whether an attempt of this age is late for somebody who waits for it; where its
/// replica is suspect, in half the time.
pub fn is_late_for_reader(age: Duration, expected: Duration, watch: LatenessLimit) -> bool {
    let share = if watch.is_suspect { 2 } else { 1 };
    age >= MIN_HEDGE_DELAY.max(expected.mul_f64(watch.late_factor)) / share
}

/// How many times as long as expected a replica's reads take, as a histogram of
/// the last thousand or so.
#[derive(Clone, Debug, Default)]
pub struct LatenessHistogram {
    counts: [u32; Self::BUCKETS],
}

impl LatenessHistogram {
    /// From a half to some ninety times, in steps of the root of two.
    const BUCKETS: usize = 16;

    /// When so many are known their weight is halved.
    const MAX_SAMPLES: u32 = 1000;

    /// Below this one in a hundred is nobody.
    const MIN_SAMPLES: u32 = 100;

    /// A read took this long.
    pub fn add(&mut self, took: Duration, expected: Duration) {
        // Below a millisecond the ratio says how fine the clock is.
        let expected = expected.as_secs_f64().max(1e-3);
        let steps = (2.0 * (2.0 * took.as_secs_f64() / expected).log2()).ceil();
        let step = steps.clamp(0.0, (Self::BUCKETS - 1) as f64) as usize;
        self.counts[step] += 1;
        if self.counts.iter().sum::<u32>() >= Self::MAX_SAMPLES {
            self.counts = self.counts.map(|count| count / 2);
        }
    }

    /// Times the expected completion after which a read is late.
    pub fn late_factor(&self) -> f64 {
        let all: u32 = self.counts.iter().sum();
        if all < Self::MIN_SAMPLES {
            return MAX_LATE_FACTOR;
        }
        let mut above = all;
        for (step, count) in self.counts.iter().enumerate() {
            above -= count;
            if above <= all / 100 {
                let exceeded_by_few = 0.5 * (step as f64 / 2.0).exp2();
                return (2.0 * exceeded_by_few).clamp(MIN_LATE_FACTOR, MAX_LATE_FACTOR);
            }
        }
        MAX_LATE_FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_four_times_the_expected_but_not_below_a_quarter_second() {
        let ms = Duration::from_millis;
        assert!(!is_late(ms(249), ms(1)));
        assert!(is_late(ms(250), ms(1)));
        assert!(!is_late(ms(399), ms(100)));
        assert!(is_late(ms(400), ms(100)));
    }

    #[test]
    fn who_waits_need_not_wait_as_long() {
        let ms = Duration::from_millis;
        let watch = LatenessLimit { late_factor: 2.0, is_suspect: false };
        assert!(!is_late_for_reader(ms(99), ms(1), watch));
        assert!(is_late_for_reader(ms(100), ms(1), watch));
        assert!(!is_late_for_reader(ms(199), ms(100), watch));
        assert!(is_late_for_reader(ms(200), ms(100), watch));
        let suspect = LatenessLimit { is_suspect: true, ..watch };
        assert!(is_late_for_reader(ms(100), ms(100), suspect));
    }

    #[test]
    fn a_replica_that_keeps_its_times_is_hedged_sooner() {
        let (mut steady, mut erratic) =
            (LatenessHistogram::default(), LatenessHistogram::default());
        let ms = Duration::from_millis;
        assert_eq!(steady.late_factor(), MAX_LATE_FACTOR, "nothing is known");
        for read in 0..500 {
            steady.add(ms(100 + read % 10), ms(100));
            erratic.add(ms(if read % 50 == 0 { 900 } else { 100 }), ms(100));
        }
        assert!(steady.late_factor() < 3.0, "{}", steady.late_factor());
        assert_eq!(erratic.late_factor(), MAX_LATE_FACTOR);
        for _ in 0..2000 {
            erratic.add(ms(90), ms(100));
        }
        assert!(erratic.late_factor() < 3.0, "it has settled: {}", erratic.late_factor());
    }
}
