//! How fast a replica delivers segments of one locality.
//!
//! A gateway that proxies another node's chunk has another rate than for its
//! own node's chunks, so everything that is measured of a replica is kept
//! [`ByLocality`]. A [`Pace`] is one such measurement: the bytes of the latest
//! completions over the time that they took to be served, one after the other.

use std::collections::VecDeque;
use std::time::Duration;

/// Completions that took this long together make up the rate.
const WINDOW: Duration = Duration::from_millis(250);

/// And so many at least, for replicas that deliver less often than that.
const FEWEST: usize = 4;

/// Completions remembered at most: what a replica of 1 GiB/s delivers of the
/// smallest segments in one window fits several times.
const MOST: usize = 4096;

/// Completions that make up most of the steady rate.
const STEADY: f64 = 64.0;

/// Completions without which there is no steady rate.
const ENOUGH: u64 = 8;

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
pub struct ByLocality<T> {
    /// For chunks that the replica's node holds.
    pub local: T,
    /// For chunks that it does not hold.
    pub remote: T,
}

impl<T> ByLocality<T> {
    /// Both values, made of both localities.
    pub fn from_fn(mut make: impl FnMut(Locality) -> T) -> Self {
        Self { local: make(Locality::Local), remote: make(Locality::Remote) }
    }
}

impl<T> std::ops::Index<Locality> for ByLocality<T> {
    type Output = T;
    fn index(&self, locality: Locality) -> &T {
        match locality {
            Locality::Local => &self.local,
            Locality::Remote => &self.remote,
        }
    }
}

impl<T> std::ops::IndexMut<Locality> for ByLocality<T> {
    fn index_mut(&mut self, locality: Locality) -> &mut T {
        match locality {
            Locality::Local => &mut self.local,
            Locality::Remote => &mut self.remote,
        }
    }
}

/// A rate, measured.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// How long each took to be served, and its bytes; the oldest first.
    served: VecDeque<(Duration, u64)>,
    time: Duration,
    bytes: u64,
    /// Decayed sums over many more of them, seconds and bytes, and how many.
    steady: (f64, f64),
    count: u64,
}

impl Pace {
    /// `bytes` came, `took` after what came before them.
    pub fn add(&mut self, took: Duration, bytes: u64) {
        self.served.push_back((took, bytes));
        self.time += took;
        self.bytes += bytes;
        while self.served.len() > FEWEST
            && let Some((oldest, amount)) = self.served.front().copied()
            && (self.time - oldest >= WINDOW || self.served.len() > MOST)
        {
            self.served.pop_front();
            self.time -= oldest;
            self.bytes -= amount;
        }
        let keep = 1.0 - 1.0 / STEADY;
        self.steady.0 = self.steady.0 * keep + took.as_secs_f64();
        self.steady.1 = self.steady.1 * keep + bytes as f64;
        self.count += 1;
    }

    /// Times have changed: what was measured counts no longer.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether there is a measurement.
    pub fn is_measured(&self) -> bool {
        !self.served.is_empty()
    }

    /// Bytes a second, if it is measured.
    pub fn rate(&self) -> Option<f64> {
        self.rate_if(Duration::ZERO, 0)
    }

    /// What the rate would be, were `bytes` to arrive now, `waited` after what
    /// came last.
    pub fn rate_if(&self, waited: Duration, bytes: u64) -> Option<f64> {
        self.is_measured()
            .then(|| (self.bytes + bytes) as f64 / (self.time + waited).as_secs_f64().max(1e-6))
    }

    /// Bytes a second over a long time, if there is enough to tell.
    pub fn steady_rate(&self) -> Option<f64> {
        (self.count >= ENOUGH).then(|| self.steady.1 / self.steady.0.max(1e-6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_completions_are_left_out_but_for_the_last_four() {
        let mut pace = Pace::default();
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
        let mut pace = Pace::default();
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
