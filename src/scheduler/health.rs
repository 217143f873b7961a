//! Whether a replica may be asked at all.
//!
//! Three states: *healthy*; *ejected*, after failing [`PATIENCE`] times in a row
//! or not delivering while its peers do; *probing*, when the ejection is over
//! and one attempt at a time shows whether it is back. Each ejection in a row
//! lasts twice as long as the one before. Whoever asks must never eject the last
//! replica: with nobody usable, all are.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Failures in a row that eject. One may be the file's fault, two a hiccup.
const PATIENCE: u32 = 3;

/// The first ejection. Short, because a replica that is back is worth having.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest: how late, at worst, a replica that is back is noticed.
const LONGEST: Duration = Duration::from_secs(30);

/// A replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Asked as its speed deserves.
    Healthy,
    /// Not asked.
    Ejected,
    /// Asked once, to see whether it is back.
    Probing,
}

/// Why a state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It delivered.
    Delivered,
    /// It failed several times in a row.
    Failures,
    /// It delivered nothing while others did.
    Stalled,
    /// Its ejection is over.
    Elapsed,
}

/// One replica's health.
#[derive(Clone, Debug)]
pub struct Health {
    state: HealthState,
    failures: u32,
    until: Option<Instant>,
    backoff: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: HealthState::Healthy, failures: 0, until: None, backoff: SHORTEST }
    }
}

/// A change of state, for the log.
pub type Change = (HealthState, HealthState, Reason);

impl Health {
    /// The state as of the last event.
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Whether the replica may be asked, once at least.
    pub fn is_usable(&self) -> bool {
        self.state != HealthState::Ejected
    }

    /// Time passed.
    pub fn elapsed(&mut self, now: Instant) -> Option<Change> {
        if self.state == HealthState::Ejected && self.until.is_some_and(|until| now >= until) {
            return self.transition(HealthState::Probing, Reason::Elapsed);
        }
        None
    }

    /// An attempt delivered.
    pub fn delivered(&mut self) -> Option<Change> {
        self.failures = 0;
        self.backoff = SHORTEST;
        self.until = None;
        self.transition(HealthState::Healthy, Reason::Delivered)
    }

    /// An attempt failed.
    pub fn failed(&mut self, now: Instant) -> Option<Change> {
        self.failures += 1;
        if self.state == HealthState::Probing || self.failures >= PATIENCE {
            return self.eject(now, Reason::Failures);
        }
        None
    }

    /// It delivered nothing for longer than can be explained, while others did.
    pub fn stalled(&mut self, now: Instant) -> Option<Change> {
        self.eject(now, Reason::Stalled)
    }

    fn eject(&mut self, now: Instant, reason: Reason) -> Option<Change> {
        let change = self.transition(HealthState::Ejected, reason)?;
        self.until = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(LONGEST);
        Some(change)
    }

    /// The only place that changes the state. Illegal edges (an ejected replica
    /// is not ejected again, a healthy one not probed) change nothing.
    fn transition(&mut self, to: HealthState, reason: Reason) -> Option<Change> {
        use HealthState::{Ejected, Healthy, Probing};
        let from = self.state;
        match (from, to) {
            (Healthy | Probing, Ejected) | (Ejected, Probing) | (Ejected | Probing, Healthy) => {
                self.state = to;
                Some((from, to, reason))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_eject_and_one_success_readmits() {
        let now = Instant::now();
        let mut health = Health::default();
        assert_eq!(health.failed(now), None);
        assert_eq!(health.failed(now), None);
        assert!(health.failed(now).is_some());
        assert!(!health.is_usable());
        assert_eq!(health.elapsed(now), None);
        health.elapsed(now + SHORTEST);
        assert_eq!(health.state(), HealthState::Probing);
        health.delivered();
        assert_eq!(health.state(), HealthState::Healthy);
    }

    #[test]
    fn each_ejection_in_a_row_lasts_longer_up_to_a_limit() {
        let mut now = Instant::now();
        let mut health = Health::default();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            health.stalled(now);
            let start = now;
            while !health.is_usable() {
                now += Duration::from_millis(100);
                health.elapsed(now);
            }
            let lasted = now - start;
            assert!(lasted >= last && lasted <= LONGEST, "{lasted:?}");
            last = lasted;
            assert!(health.failed(now).is_some(), "one failure ends the probe");
        }
        assert_eq!(last, LONGEST);
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..10 {
            assert_eq!(health.failed(now), None);
            assert_eq!(health.failed(now), None);
            health.delivered();
        }
        assert_eq!(health.state(), HealthState::Healthy);
    }
}
