//! How fast a replica delivers segments of one locality.
//!
//! A gateway that proxies another node's chunk has another rate than for its
//! own node's chunks, so everything that is measured of a replica is kept
//! [`PerLocality`]. A [`RateMeter`] is one such measurement: the bytes of the latest
//! completions over the time that they took to be served, one after the other.

use std::collections::VecDeque;
use std::time::Duration;

/// Completions that took this long together make up the rate.
const RATE_WINDOW: Duration = Duration::from_millis(250);

/// And so many at least, for replicas that deliver less often than that.
const MIN_SAMPLES: usize = 4;

/// Completions remembered at most: what a replica of 1 GiB/s delivers of the
/// smallest segments in one window fits several times.
const MAX_SAMPLES: usize = 4096;

/// Completions that make up most of the steady rate.
const STEADY_SAMPLES: f64 = 64.0;

/// Completions without which there is no steady rate.
const MIN_STEADY_SAMPLES: u64 = 8;

/// Whether a replica's node holds the chunk that a segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// It does, or nothing is known of the chunk.
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
    /// Both values, made of both localities.
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

/// A rate, measured.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    /// How long each took to be served, and its bytes; the oldest first.
    samples: VecDeque<(Duration, u64)>,
    total_time: Duration,
    total_bytes: u64,
    /// Decayed sums over many more of them, seconds and bytes, and how many.
    decayed_sums: (f64, f64),
    count: u64,
}

impl RateMeter {
    /// `bytes` came, `took` after what came before them.
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

    /// Times have changed: what was measured counts no longer.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether there is a measurement.
    pub fn is_measured(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Bytes a second, if it is measured.
    pub fn rate(&self) -> Option<f64> {
        self.rate_if_delivered(Duration::ZERO, 0)
    }

    /// What the rate would be, were `bytes` to arrive now, `waited` after what
    /// came last.
    pub fn rate_if_delivered(&self, waited: Duration, bytes: u64) -> Option<f64> {
        self.is_measured().then(|| {
            (self.total_bytes + bytes) as f64 / (self.total_time + waited).as_secs_f64().max(1e-6)
        })
    }

    /// Bytes a second over a long time, if there is enough to tell.
    pub fn steady_rate(&self) -> Option<f64> {
        (self.count >= MIN_STEADY_SAMPLES)
            .then(|| self.decayed_sums.1 / self.decayed_sums.0.max(1e-6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_completions_are_left_out_but_for_the_last_four() {
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
