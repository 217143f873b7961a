//! Computes how long to wait before the next read, to keep a rate. Pure.
//!
//! The wait is before a read is sent, not while it runs (as in `backend::RateLimited`): the
//! deadline of a read must measure only the replica.

use std::time::{Duration, Instant};

/// A rate limit, and the time at which it allows the next read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateThrottle {
    bytes_per_second: u64,
    idle_at: Instant,
}

impl RateThrottle {
    /// At most this many bytes per second; 0 counts as 1.
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), idle_at: now }
    }

    /// Reserves `bytes`; returns how long to wait before reading them.
    pub(super) fn reserve(&mut self, bytes: u64, now: Instant) -> Duration {
        let begins = self.idle_at.max(now);
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.idle_at = begins + takes;
        begins.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_is_immediate_and_others_are_paced() {
        let start = Instant::now();
        let mut pace = RateThrottle::new(1000, start);
        let waits: Vec<u128> = (0..3).map(|_| pace.reserve(500, start).as_millis()).collect();
        assert_eq!(waits, [0, 500, 1000]);
        let later = start + Duration::from_secs(60);
        assert_eq!(pace.reserve(500, later), Duration::ZERO, "unused time is gone");
        assert_eq!(pace.reserve(500, later).as_millis(), 500);
    }
}
