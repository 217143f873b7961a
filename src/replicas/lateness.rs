//! When a segment or a call is late.
//!
//! A segment is late after [`MAX_LATE_FACTOR`] times the completion time that was expected at
//! dispatch, but not before [`MIN_LATE_AGE`]. A segment that a reader waits for is late sooner, if
//! there is another copy. The factor is then twice the ratio that only one in a hundred of the
//! replica's own reads exceeds ([`LatenessHistogram`]), and the minimum is [`MIN_HEDGE_DELAY`]. A
//! late segment may be read from another replica too, and the first answer counts.
//! [`super::hedge_budget`] limits the cost; only a segment past the attempt deadline needs no
//! payment.

use std::time::Duration;

/// Multiple of the expected completion while too few reads of a replica are known, and the upper
/// limit.
pub const MAX_LATE_FACTOR: f64 = 4.0;

/// The lower limit: the expected completion is a mean.
const MIN_LATE_FACTOR: f64 = 2.0;

/// No hedge is sent sooner, even for a waiting reader. A shorter stall is usually this machine's
/// own: the daemon may not get a processor for tens of milliseconds.
pub const MIN_HEDGE_DELAY: Duration = Duration::from_millis(100);

/// Nothing is late by any measure before this: people do not notice a shorter stall.
const MIN_LATE_AGE: Duration = Duration::from_millis(250);

/// Whether an attempt of this age is late by any measure.
pub fn is_late(age: Duration, expected: Duration) -> bool {
    age >= MIN_LATE_AGE.max(expected.mul_f64(MAX_LATE_FACTOR))
}

/// The lateness limits for an attempt's replica.
#[derive(Clone, Copy, Debug)]
pub struct LatenessLimit {
    /// Multiple of the expected completion; see [`LatenessHistogram::late_factor`].
    pub late_factor: f64,
    /// Whether the replica is suspect.
    pub is_suspect: bool,
}

/// Whether an attempt of this age is late for a reader that waits for it; in half the time if its
/// replica is suspect.
pub fn is_late_for_reader(age: Duration, expected: Duration, watch: LatenessLimit) -> bool {
    let share = if watch.is_suspect { 2 } else { 1 };
    age >= MIN_HEDGE_DELAY.max(expected.mul_f64(watch.late_factor)) / share
}

/// The buckets of actual over expected read times: from 0.5 to about 90, in steps of the square
/// root of two.
const BUCKETS: usize = 16;

/// Numbers of reads by their actual over expected times.
#[derive(Clone, Debug, Default)]
pub struct LatenessCounts([u32; BUCKETS]);

impl LatenessCounts {
    /// Records a read that took `took`.
    pub fn add(&mut self, took: Duration, expected: Duration) {
        // Below a millisecond the ratio shows only the resolution of the clock.
        let expected = expected.max(Duration::from_millis(1));
        let step = match took * 2 <= expected {
            true => 0,
            false => {
                let ratio = took.as_secs_f64() / expected.as_secs_f64();
                let steps = (2.0 * (2.0 * ratio).log2()).ceil();
                steps.clamp(0.0, (BUCKETS - 1) as f64) as usize
            }
        };
        self.0[step] = self.0[step].saturating_add(1);
    }

    fn total(&self) -> u32 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// A histogram of actual over expected read times of a replica, over about the last thousand reads.
#[derive(Clone, Debug, Default)]
pub struct LatenessHistogram {
    counts: LatenessCounts,
}

impl LatenessHistogram {
    /// At this number of samples their weight is halved.
    const MAX_SAMPLES: u32 = 1000;

    /// With fewer samples, one in a hundred is less than one read.
    const MIN_SAMPLES: u32 = 100;

    /// Records a read that took `took`.
    pub fn add(&mut self, took: Duration, expected: Duration) {
        self.counts.add(took, expected);
        self.halve_if_full();
    }

    /// Records many reads.
    pub fn merge(&mut self, reads: &LatenessCounts) {
        let sums = self.counts.0.iter_mut().zip(reads.0);
        sums.for_each(|(sum, count)| *sum = sum.saturating_add(count));
        self.halve_if_full();
    }

    fn halve_if_full(&mut self) {
        while self.counts.total() >= Self::MAX_SAMPLES {
            self.counts.0 = self.counts.0.map(|count| count / 2);
        }
    }

    /// The multiple of the expected completion after which a read is late.
    pub fn late_factor(&self) -> f64 {
        let all = self.counts.total();
        if all < Self::MIN_SAMPLES {
            return MAX_LATE_FACTOR;
        }
        let mut above = all;
        for (step, count) in self.counts.0.iter().enumerate() {
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
    fn a_read_is_late_at_four_times_the_expected_time() {
        let ms = Duration::from_millis;
        assert!(!is_late(ms(249), ms(1)));
        assert!(is_late(ms(250), ms(1)));
        assert!(!is_late(ms(399), ms(100)));
        assert!(is_late(ms(400), ms(100)));
    }

    #[test]
    fn a_waiting_reader_hedges_sooner() {
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
    fn a_replica_with_steady_latency_is_hedged_sooner() {
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
