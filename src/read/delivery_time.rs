//! When a file last delivered something.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Times are counted from here.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The resolution of [`DeliveryTime::advance`], microseconds. Deadlines are a thousand times as
/// long.
const RESOLUTION_US: u64 = 10_000;

/// The time of the latest delivery, microseconds since [`START`], plus 1; 0 for none.
#[derive(Debug, Default)]
pub(super) struct DeliveryTime(AtomicU64);

impl DeliveryTime {
    /// The time of the latest delivery.
    pub(super) fn get(&self) -> Option<Instant> {
        let us = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(*START + Duration::from_micros(us))
    }

    /// Records a delivery.
    pub(super) fn set(&self, at: Instant) {
        self.0.fetch_max(stamp(at), Ordering::Relaxed);
    }

    /// Records a delivery, unless one of about the same time is known. Threads that deliver at a
    /// high rate do not wait for each other here.
    pub(super) fn advance(&self, at: Instant) {
        let stamp = stamp(at);
        if stamp > self.0.load(Ordering::Relaxed) + RESOLUTION_US {
            self.0.fetch_max(stamp, Ordering::Relaxed);
        }
    }
}

fn stamp(at: Instant) -> u64 {
    at.saturating_duration_since(*START).as_micros() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_delivery_counts() {
        let time = DeliveryTime::default();
        assert_eq!(time.get(), None);
        let first = *START + Duration::from_secs(5);
        time.set(first);
        time.set(first - Duration::from_secs(1));
        assert_eq!(time.get(), Some(first));
        time.advance(first + Duration::from_micros(RESOLUTION_US / 2));
        assert_eq!(time.get(), Some(first), "about the same time");
        let later = first + Duration::from_micros(2 * RESOLUTION_US);
        time.advance(later);
        assert_eq!(time.get(), Some(later));
    }
}
