//! How long things took: a histogram that any number of threads may add to at once.
//!
//! One counter for each range of microseconds, each range a 64th of its power of two,
//! so a quantile is right to 1.6 %. To add to it is two additions and, for a new
//! longest time, one more: no lock, and a reader delays no writer. A thousand
//! and its doublings are edges of ranges, as is every number below 128, so [`HistogramSnapshot`]
//! can be summed up exactly to [`BUCKET_BOUNDS_US`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The upper bounds that metrics are published with, microseconds: from what an answer
/// out of memory takes to more than the default deadline.
pub const BUCKET_BOUNDS_US: [u64; 22] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000,
    256_000, 512_000, 1_024_000, 2_048_000, 4_096_000, 8_192_000, 16_384_000, 32_768_000,
];

/// Ranges in a power of two: 2 to this.
const SUB_BUCKET_BITS: u32 = 6;

/// Longer ones count as this long: 71 minutes, more than the longest deadline that the
/// configuration takes.
const MAX_US: u64 = (1 << 32) - 1;

const BUCKETS: usize = bucket_of(MAX_US) + 1;

/// The range that a number of microseconds falls into.
const fn bucket_of(us: u64) -> usize {
    if us < 1 << SUB_BUCKET_BITS {
        return us as usize;
    }
    let shift = us.ilog2() - SUB_BUCKET_BITS;
    ((shift as usize) << SUB_BUCKET_BITS) + (us >> shift) as usize
}

/// The first number of microseconds that is above the range.
const fn bucket_end(range: usize) -> u64 {
    if range < 1 << SUB_BUCKET_BITS {
        return range as u64 + 1;
    }
    let shift = (range >> SUB_BUCKET_BITS) - 1;
    ((range - (shift << SUB_BUCKET_BITS) + 1) as u64) << shift
}

/// A histogram of durations; 14 KiB.
pub struct LatencyHistogram {
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

/// A reading of [`LatencyHistogram`].
#[derive(Clone, Debug)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    sum_us: u64,
    max_us: u64,
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    /// Median.
    pub p50_us: u64,
    /// 95 %.
    pub p95_us: u64,
    /// 99 %.
    pub p99_us: u64,
    /// Longest.
    pub max_us: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { counts, sum_us: AtomicU64::new(0), max_us: AtomicU64::new(0) }
    }
}

impl LatencyHistogram {
    /// Something took so long.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).map_or(MAX_US, |us| us.min(MAX_US));
        self.counts[bucket_of(us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
        if us > self.max_us.load(Relaxed) {
            self.max_us.fetch_max(us, Relaxed);
        }
    }

    /// What there is so far. What is added meanwhile is in it or is not.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum_us: self.sum_us.load(Relaxed),
            max_us: self.max_us.load(Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// How many there are.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of them took together, seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    /// How many took less than each of [`BUCKET_BOUNDS_US`], and not less than the one before
    /// it; at the end those that took longer.
    pub fn bucket_counts(&self) -> [u64; BUCKET_BOUNDS_US.len() + 1] {
        let mut between = [0; BUCKET_BOUNDS_US.len() + 1];
        for (range, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            between[BUCKET_BOUNDS_US.partition_point(|bound| *bound < bucket_end(range))] += count;
        }
        between
    }

    /// The time that so much of all of them took at most, microseconds; 0 of none.
    fn quantile(&self, part: f64) -> u64 {
        let wanted = ((self.total() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let range = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        range.map_or(0, |range| (bucket_end(range) - 1).min(self.max_us))
    }

    /// The quantiles that `fanfs status` shows.
    pub fn quantiles(&self) -> LatencyQuantiles {
        LatencyQuantiles {
            p50_us: self.quantile(0.5),
            p95_us: self.quantile(0.95),
            p99_us: self.quantile(0.99),
            max_us: self.max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_one_range_of_its_own_size() {
        let mut expected = 0;
        for range in 0..BUCKETS {
            let end = bucket_end(range);
            assert_eq!((bucket_of(expected), bucket_of(end - 1)), (range, range));
            assert!(range < 64 || (end - expected) * 64 <= expected, "{expected}..{end}");
            expected = end;
        }
        assert_eq!(expected, MAX_US + 1);
    }

    #[test]
    fn the_bounds_are_edges_of_ranges() {
        for bound in BUCKET_BOUNDS_US {
            assert_eq!(bucket_end(bucket_of(bound - 1)), bound);
        }
    }

    #[test]
    fn what_was_added_is_found_between_its_bounds() {
        let times = LatencyHistogram::default();
        for us in [0, 9, 10, 999, 1_000, 5_000_000, u64::MAX / 1_000] {
            times.record(Duration::from_micros(us));
        }
        let counts = times.snapshot();
        let between = counts.bucket_counts();
        assert_eq!((between[0], between[1]), (2, 1));
        // Less than 1 ms, and not.
        assert_eq!((between[6], between[7]), (1, 1));
        assert_eq!((between[19], between[22]), (1, 1));
        assert_eq!(between.iter().sum::<u64>(), counts.total());
    }

    #[test]
    fn quantiles_are_right_to_two_percent() {
        let times = LatencyHistogram::default();
        assert_eq!(times.snapshot().quantiles().p99_us, 0);
        for us in 1..=100_000 {
            times.record(Duration::from_micros(us));
        }
        let latency = times.snapshot().quantiles();
        let near = |found: u64, right: u64| found >= right && found as f64 <= right as f64 * 1.02;
        assert!(near(latency.p50_us, 50_000), "{latency:?}");
        assert!(near(latency.p95_us, 95_000), "{latency:?}");
        assert!(near(latency.p99_us, 99_000), "{latency:?}");
        assert_eq!(latency.max_us, 100_000);
        assert!((times.snapshot().sum_s() - 5_000.05).abs() < 1e-6);
    }

    #[test]
    fn threads_add_up() {
        let times = LatencyHistogram::default();
        std::thread::scope(|scope| {
            for us in [3, 3, 3000] {
                let times = &times;
                scope.spawn(move || {
                    (0..10_000).for_each(|_| times.record(Duration::from_micros(us)));
                });
            }
        });
        let counts = times.snapshot();
        assert_eq!((counts.total(), counts.bucket_counts()[0]), (30_000, 20_000));
    }
}
