//! The rate at which a replica delivers segments of one locality.
//!
//! A gateway that proxies another node's chunk delivers at another rate than for its own node's
//! chunks. So all measurements of a replica are kept [`PerLocality`]. A [`RateMeter`] is one such
//! measurement: the bytes of the latest completions over the time that they took to be served, one
//! after the other.

use std::collections::VecDeque;
use std::time::Duration;

/// The rate covers the completions of this much service time.
const RATE_WINDOW: Duration = Duration::from_millis(250);

/// The least number of completions, for replicas that deliver less often.
const MIN_SAMPLES: usize = 4;

/// The most completions remembered: several times as many as a replica of 1 GiB/s delivers in one
/// window with the smallest segments.
const MAX_SAMPLES: usize = 4096;

/// The number of completions that dominate the steady rate.
const STEADY_SAMPLES: f64 = 64.0;

/// The least number of completions for a steady rate.
const MIN_STEADY_SAMPLES: u64 = 8;

/// Whether a replica's node holds the chunk that a segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// It does, or the chunk's nodes are unknown.
    Local,
    /// It does not: the gateway has to fetch it from another node.
    Remote,
}

/// One `T` for each locality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerLocality<T> {
    /// For chunks that the replica's node holds.
    pub local: T,
    /// For chunks that it does not hold.
    pub remote: T,
}

impl<T> PerLocality<T> {
    /// Makes the value of each locality.
    pub fn from_fn(mut make: impl FnMut(Locality) -> T) -> Self {
        Self { local: make(Locality::Local), remote: make(Locality::Remote) }
    }
}

impl<T> std::ops::Index<Locality> for PerLocality<T> {
    type Output = T;
    fn index(&self, locality: Locality) -> &T {
        match locality {
            Locality::Local => &self.local,
            Locality::Remote => &self.remote,
        }
    }
}

impl<T> std::ops::IndexMut<Locality> for PerLocality<T> {
    fn index_mut(&mut self, locality: Locality) -> &mut T {
        match locality {
            Locality::Local => &mut self.local,
            Locality::Remote => &mut self.remote,
        }
    }
}

/// A measured rate.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    /// The service time and the bytes of each completion; the oldest first.
    samples: VecDeque<(Duration, u64)>,
    total_time: Duration,
    total_bytes: u64,
    /// Decayed sums of seconds and bytes over many more completions.
    decayed_sums: (f64, f64),
    count: u64,
}

impl RateMeter {
    /// Adds a completion of `bytes`, `took` after the one before it.
    pub fn add(&mut self, took: Duration, bytes: u64) {
        self.samples.push_back((took, bytes));
        self.total_time += took;
        self.total_bytes += bytes;
        while self.samples.len() > MIN_SAMPLES
            && let Some((oldest, amount)) = self.samples.front().copied()
            && (self.total_time - oldest >= RATE_WINDOW || self.samples.len() > MAX_SAMPLES)
        {
            self.samples.pop_front();
            self.total_time -= oldest;
            self.total_bytes -= amount;
        }
        let keep = 1.0 - 1.0 / STEADY_SAMPLES;
        self.decayed_sums.0 = self.decayed_sums.0 * keep + took.as_secs_f64();
        self.decayed_sums.1 = self.decayed_sums.1 * keep + bytes as f64;
        self.count += 1;
    }

    /// Forgets all measurements, because the rate has changed.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether there is a measurement.
    pub fn is_measured(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Bytes a second, if measured.
    pub fn rate(&self) -> Option<f64> {
        self.rate_if_delivered(Duration::ZERO, 0)
    }

    /// The rate if `bytes` arrived now, `waited` after the last completion.
    pub fn rate_if_delivered(&self, waited: Duration, bytes: u64) -> Option<f64> {
        self.is_measured().then(|| {
            (self.total_bytes + bytes) as f64 / (self.total_time + waited).as_secs_f64().max(1e-6)
        })
    }

    /// The long-term rate in bytes a second, if there are enough completions.
    pub fn steady_rate(&self) -> Option<f64> {
        (self.count >= MIN_STEADY_SAMPLES)
            .then(|| self.decayed_sums.1 / self.decayed_sums.0.max(1e-6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_completions_expire_except_the_last_four() {
        let mut pace = RateMeter::default();
        assert_eq!(pace.rate(), None);
        for _ in 0..100 {
            pace.add(Duration::from_millis(10), 1000);
        }
        for _ in 0..25 {
            pace.add(Duration::from_millis(10), 100);
        }
        assert!((pace.rate().unwrap() / 10_000.0 - 1.0).abs() < 0.01, "{:?}", pace.rate());
        for _ in 0..4 {
            pace.add(Duration::from_secs(1), 1000);
        }
        assert_eq!(pace.rate(), Some(1000.0));
    }

    #[test]
    fn the_steady_rate_remembers_longer() {
        let mut pace = RateMeter::default();
        for _ in 0..500 {
            pace.add(Duration::from_millis(10), 1000);
        }
        for _ in 0..4 {
            pace.add(Duration::from_millis(100), 1000);
        }
        assert!(pace.steady_rate().unwrap() > 60_000.0);
        assert!(pace.rate().unwrap() < 30_000.0);
    }
}
