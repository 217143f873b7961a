//! Converts the daemon's monotonic instants to the time of day, for timestamps in reports.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A step of the system clock that is at least this long moves all timestamps; smaller changes are
/// the adjustments of NTP, and moving timestamps with each of them would show changes where there
/// are none.
const MIN_STEP: Duration = Duration::from_secs(1);

/// A time of day: seconds since 1970-01-01 UTC, with milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Timestamp(f64);

impl Timestamp {
    /// A timestamp `unix_s` seconds after 1970.
    pub fn from_unix(unix_s: f64) -> Self {
        Self((unix_s * 1e3).round() / 1e3)
    }

    /// Seconds since 1970.
    pub fn unix_s(self) -> f64 {
        self.0
    }

    /// The time from `earlier` until this one, in whole seconds; 0 if `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> u64 {
        // A negative number becomes 0.
        (self.0 - earlier.0) as u64
    }
}

/// The time of day. An instant has the same timestamp in all reports, unless the system clock was
/// set in between.
pub struct WallClock {
    anchor: Mutex<Anchor>,
}

/// Both clocks at one moment. All timestamps of a report come from one anchor, so that their
/// differences are right even while the clock is set.
#[derive(Clone, Copy)]
pub struct Anchor {
    instant: Instant,
    unix_s: f64,
}

impl Default for WallClock {
    fn default() -> Self {
        Self { anchor: Mutex::new(Anchor::now()) }
    }
}

impl WallClock {
    /// The anchor for a report.
    pub fn anchor(&self) -> Anchor {
        let mut anchor = self.anchor.lock();
        anchor.follow_step(Anchor::now());
        *anchor
    }
}

impl Anchor {
    fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_s: since_1970.as_secs_f64() }
    }

    fn unix_s_at(&self, instant: Instant) -> f64 {
        let later = instant.saturating_duration_since(self.instant);
        let earlier = self.instant.saturating_duration_since(instant);
        self.unix_s + later.as_secs_f64() - earlier.as_secs_f64()
    }

    /// Becomes `now` if the system clock was set since this anchor.
    fn follow_step(&mut self, now: Self) {
        if (self.unix_s_at(now.instant) - now.unix_s).abs() >= MIN_STEP.as_secs_f64() {
            *self = now;
        }
    }

    /// The time of day of `instant`.
    pub fn timestamp(&self, instant: Instant) -> Timestamp {
        Timestamp::from_unix(self.unix_s_at(instant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(instant: Instant, unix_s: f64) -> Anchor {
        Anchor { instant, unix_s }
    }

    #[test]
    fn an_instant_keeps_its_timestamp_while_the_clock_is_slewed() {
        let start = Instant::now() + Duration::from_secs(100);
        let minute = Duration::from_secs(60);
        let mut clock = anchor(start, 1_000.0);
        let event = start - Duration::from_secs(10);
        assert_eq!(clock.timestamp(event), Timestamp::from_unix(990.0));
        clock.follow_step(anchor(start + minute, 1_060.4));
        assert_eq!(clock.timestamp(event), Timestamp::from_unix(990.0));
    }

    #[test]
    fn timestamps_follow_a_step_of_the_clock() {
        let start = Instant::now() + Duration::from_secs(100);
        let mut clock = anchor(start, 1_000.0);
        let minute = Duration::from_secs(60);
        clock.follow_step(anchor(start + minute, 5_060.0));
        assert_eq!(clock.timestamp(start), Timestamp::from_unix(5_000.0));
        clock.follow_step(anchor(start + minute, 1_060.0));
        assert_eq!(clock.timestamp(start), Timestamp::from_unix(1_000.0));
    }

    #[test]
    fn ages_are_whole_seconds_and_never_negative() {
        let at = Timestamp::from_unix;
        assert_eq!(at(12.9).seconds_since(at(10.0)), 2);
        assert_eq!(at(10.0).seconds_since(at(12.9)), 0);
    }
}
