//! A histogram of durations that any number of threads can record to at the same time.
//!
//! There is one counter for each range of microseconds, and each range is a 64th of its power of
//! two, so quantiles are accurate to 1.6 %. Recording takes two additions and, for a new maximum,
//! one more atomic operation. There is no lock, and a reader delays no writer. 1000 and its
//! doublings are range boundaries, as is every number below 128. So [`HistogramSnapshot`] can be
//! summed exactly to [`BUCKET_BOUNDS_US`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The upper bounds of the published buckets, microseconds: from an answer out of memory to more
/// than the default deadline.
pub const BUCKET_BOUNDS_US: [u64; 22] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000,
    256_000, 512_000, 1_024_000, 2_048_000, 4_096_000, 8_192_000, 16_384_000, 32_768_000,
];

/// The base-2 logarithm of the number of ranges in a power of two.
const SUB_BUCKET_BITS: u32 = 6;

/// Longer durations count as this one: 71 minutes, more than the longest deadline that the
/// configuration accepts.
const MAX_US: u64 = (1 << 32) - 1;

const BUCKETS: usize = bucket_of(MAX_US) + 1;

/// The index of the range that contains a number of microseconds.
const fn bucket_of(us: u64) -> usize {
    if us < 1 << SUB_BUCKET_BITS {
        return us as usize;
    }
    let shift = us.ilog2() - SUB_BUCKET_BITS;
    ((shift as usize) << SUB_BUCKET_BITS) + (us >> shift) as usize
}

/// The first number of microseconds above the range.
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

/// A snapshot of [`LatencyHistogram`]. Its JSON is a [`LatencySummary`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "LatencySummary", into = "LatencySummary")]
pub struct HistogramSnapshot {
    /// The ranges that are not empty, in ascending order.
    buckets: Vec<Bucket>,
    sum_us: u64,
    max_us: u64,
}

/// The number of durations in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// The first number of microseconds above the range.
    end_us: u64,
    count: u64,
}

/// Durations in microseconds: quantiles since this daemon began to serve the mount, and the
/// histogram itself, from which two answers give the quantiles of the time between them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LatencySummary {
    /// The median.
    pub p50_us: u64,
    /// The 95 % quantile.
    pub p95_us: u64,
    /// The 99 % quantile.
    pub p99_us: u64,
    /// The maximum.
    pub max_us: u64,
    /// The sum.
    pub sum_us: u64,
    /// The histogram: pairs of a bound and the number of durations below it and not below the
    /// previous pair's bound. Pairs without durations are left out.
    pub buckets: Vec<[u64; 2]>,
}

impl Bucket {
    /// The longest duration in it. An answer on the control socket may have any bound.
    fn longest_us(&self) -> u64 {
        self.end_us.saturating_sub(1)
    }
}

impl From<HistogramSnapshot> for LatencySummary {
    fn from(times: HistogramSnapshot) -> Self {
        Self {
            p50_us: times.quantile_us(0.5),
            p95_us: times.quantile_us(0.95),
            p99_us: times.quantile_us(0.99),
            max_us: times.max_us,
            sum_us: times.sum_us,
            buckets: times.buckets.iter().map(|bucket| [bucket.end_us, bucket.count]).collect(),
        }
    }
}

impl From<LatencySummary> for HistogramSnapshot {
    fn from(summary: LatencySummary) -> Self {
        let bucket = |[end_us, count]: [u64; 2]| Bucket { end_us, count };
        Self {
            buckets: summary.buckets.into_iter().map(bucket).collect(),
            sum_us: summary.sum_us,
            max_us: summary.max_us,
        }
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { counts, sum_us: AtomicU64::new(0), max_us: AtomicU64::new(0) }
    }
}

impl LatencyHistogram {
    /// Records one duration.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).map_or(MAX_US, |us| us.min(MAX_US));
        self.counts[bucket_of(us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
        if us > self.max_us.load(Relaxed) {
            self.max_us.fetch_max(us, Relaxed);
        }
    }

    /// The current counts. Durations that are recorded at the same moment may be missing.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).enumerate();
        let bucket = |(range, count)| Bucket { end_us: bucket_end(range), count };
        HistogramSnapshot {
            buckets: counts.filter(|(_, count)| *count > 0).map(bucket).collect(),
            sum_us: self.sum_us.load(Relaxed),
            max_us: self.max_us.load(Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// The number of durations.
    pub fn total(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// The sum of all durations, seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    /// For each of [`BUCKET_BOUNDS_US`], the number of durations below it and not below the
    /// previous one; the last number counts the longer ones.
    pub fn bucket_counts(&self) -> [u64; BUCKET_BOUNDS_US.len() + 1] {
        let mut between = [0; BUCKET_BOUNDS_US.len() + 1];
        for bucket in &self.buckets {
            between[BUCKET_BOUNDS_US.partition_point(|bound| *bound < bucket.end_us)] +=
                bucket.count;
        }
        between
    }

    /// The time that this fraction of the durations did not exceed, microseconds; 0 if there are
    /// none.
    pub fn quantile_us(&self, part: f64) -> u64 {
        let wanted = ((self.total() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            seen = bucket.count.saturating_add(seen);
            seen >= wanted
        });
        bucket.map_or(0, |bucket| bucket.longest_us().min(self.max_us))
    }

    /// The durations that were recorded after `earlier`, a snapshot of the same histogram. The
    /// maximum is the bound of the highest range, because the exact one may be older.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut old = earlier.buckets.iter().peekable();
        let mut buckets = Vec::new();
        for bucket in &self.buckets {
            while old.next_if(|old| old.end_us < bucket.end_us).is_some() {}
            let before = old.next_if(|old| old.end_us == bucket.end_us).map_or(0, |old| old.count);
            let count = bucket.count.saturating_sub(before);
            if count > 0 {
                buckets.push(Bucket { count, ..*bucket });
            }
        }
        let highest = buckets.last().map_or(0, Bucket::longest_us);
        Self {
            buckets,
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
            max_us: highest.min(self.max_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_exactly_one_bucket() {
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
    fn published_bounds_are_bucket_edges() {
        for bound in BUCKET_BOUNDS_US {
            assert_eq!(bucket_end(bucket_of(bound - 1)), bound);
        }
    }

    #[test]
    fn recorded_times_are_found_between_their_bounds() {
        let times = LatencyHistogram::default();
        for us in [0, 9, 10, 999, 1_000, 5_000_000, u64::MAX / 1_000] {
            times.record(Duration::from_micros(us));
        }
        let counts = times.snapshot();
        let between = counts.bucket_counts();
        assert_eq!((between[0], between[1]), (2, 1));
        // One below 1 ms, and one not.
        assert_eq!((between[6], between[7]), (1, 1));
        assert_eq!((between[19], between[22]), (1, 1));
        assert_eq!(between.iter().sum::<u64>(), counts.total());
    }

    #[test]
    fn quantiles_are_accurate_to_two_percent() {
        let times = LatencyHistogram::default();
        assert_eq!(times.snapshot().quantile_us(0.99), 0);
        for us in 1..=100_000 {
            times.record(Duration::from_micros(us));
        }
        let latency = LatencySummary::from(times.snapshot());
        let near = |found: u64, right: u64| found >= right && found as f64 <= right as f64 * 1.02;
        assert!(near(latency.p50_us, 50_000), "{latency:?}");
        assert!(near(latency.p95_us, 95_000), "{latency:?}");
        assert!(near(latency.p99_us, 99_000), "{latency:?}");
        assert_eq!(latency.max_us, 100_000);
        assert!((times.snapshot().sum_s() - 5_000.05).abs() < 1e-6);
    }

    #[test]
    fn counts_of_all_threads_are_summed() {
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

    #[test]
    fn a_difference_has_only_the_later_durations() {
        let times = LatencyHistogram::default();
        [5, 5, 900_000].iter().for_each(|us| times.record(Duration::from_micros(*us)));
        let before = times.snapshot();
        assert_eq!(before.since(&before).total(), 0);
        [5, 70, 4_000].iter().for_each(|us| times.record(Duration::from_micros(*us)));
        let now = times.snapshot();
        let later = now.since(&before);
        assert_eq!((later.total(), later.quantile_us(0.3), later.quantile_us(0.6)), (3, 5, 70));
        assert!((4_000..4_100).contains(&later.quantile_us(1.0)), "{later:?}");
        assert!((later.sum_s() - 0.004_075).abs() < 1e-9, "{later:?}");
        // Of another daemon, which counts from zero.
        assert_eq!(before.since(&now).total(), 0);
    }

    #[test]
    fn the_json_of_a_histogram_gives_the_histogram_back() {
        let times = LatencyHistogram::default();
        let all = [3, 3, 3_000, u64::MAX / 1_000];
        all.iter().for_each(|us| times.record(Duration::from_micros(*us)));
        let times = times.snapshot();
        let json = serde_json::to_value(&times).unwrap();
        assert_eq!((&json["p50_us"], &json["buckets"][0]), (&3.into(), &[4, 2].into()));
        let back: HistogramSnapshot = serde_json::from_value(json).unwrap();
        assert_eq!(
            (back.buckets, back.sum_us, back.max_us),
            (times.buckets, times.sum_us, times.max_us)
        );
    }

    #[test]
    fn an_answer_with_any_numbers_does_no_harm() {
        let json = r#"{"p50_us":0,"p95_us":0,"p99_us":0,"max_us":9,"sum_us":1,
            "buckets":[[0,18446744073709551615],[5,1],[3,18446744073709551615]]}"#;
        let times: HistogramSnapshot = serde_json::from_str(json).unwrap();
        assert_eq!((times.total(), times.quantile_us(0.5)), (u64::MAX, 0));
        assert_eq!(times.since(&times).total(), 0);
        serde_json::to_string(&times).unwrap();
    }
}
