//! Whether a replica may be asked, as one state machine.
//!
//! | state | meaning | it is left |
//! |---|---|---|
//! | *healthy* | asked as its speed deserves | |
//! | *suspect* | failed or was late lately: asked, but its reads go to a second replica sooner, and metadata is asked for elsewhere first | to healthy, when it delivered often enough, or nothing happened for a while |
//! | *ejected* | not asked | to probing, when its time is over and it proved to be the mount that it was |
//! | *probing* | asked one thing at a time, and a second replica soon after | to healthy, when it delivered; back to ejected, when it failed |
//! | *absent* | its mount has gone from its place, or was not there yet | as ejected; the first time to healthy |
//!
//! A failure is [`A_FAILURE`] strikes, what is delivered takes one away, and
//! [`OUT`] eject: three failures in a row, or more than a fifth of all. A replica
//! is ejected, too, that delivers nothing while others do, and one that delivers
//! next to nothing compared with them ([`SLOW`]). Each ejection soon after the one
//! before lasts twice as long.
//!
//! Pure: time comes in as an argument, and so does whether somebody else is left
//! to be asked: the last replica is never ejected. What all replicas together have
//! to do with it is in [`super::board`].

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Strikes of one failure.
const A_FAILURE: u32 = 4;

/// Strikes that eject.
pub(super) const OUT: u32 = 3 * A_FAILURE;

/// A suspect that nothing has happened to for so long is healthy.
const FORGIVEN_AFTER: Duration = Duration::from_secs(5);

/// The first ejection. Short, because a replica that is back is worth having.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// The longest: how late, at worst, a replica that is back is noticed. One that
/// hung is noticed at once, by what comes back from it.
pub const LONGEST: Duration = Duration::from_secs(10);

/// An ejection that comes within so many times the last one's length after its end
/// counts as its continuation.
const SOON: u32 = 4;

/// A replica that delivers less than this part of what the best one does is not
/// worth the odd segment that a reader waits for.
pub const SLOW: f64 = 0.05;

/// And it is asked again when it delivers this much.
pub const QUICK_ENOUGH: f64 = 2.0 * SLOW;

/// A replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Asked as its speed deserves.
    Healthy,
    /// Asked, and watched.
    Suspect,
    /// Not asked.
    Ejected,
    /// Asked one thing at a time, to see whether it is back.
    Probing,
    /// Not asked: it is not in service.
    Absent,
}

/// Why a state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// Nothing has happened yet.
    Started,
    /// It delivered.
    Delivered,
    /// Something that was asked of it failed.
    Failed,
    /// Something that it was asked for took longer than it should.
    Late,
    /// Too much of what was asked of it failed.
    Failures,
    /// It delivered nothing while others did.
    Stalled,
    /// It took longer than an attempt may.
    Deadline,
    /// It delivers next to nothing compared with others.
    Slow,
    /// It is the mount that it was.
    Proved,
    /// Its mount has gone from its place.
    Gone,
    /// There was no trouble with it for a while.
    Quiet,
}

/// What came of looking whether a replica is the mount that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It is.
    Same,
    /// It does not answer, or not well.
    Failed,
    /// There is no mount in its place, or another one.
    Gone,
    /// It could not be looked: nothing is known of the replica.
    Unclear,
}

/// What a call outside the read path tells of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It answered.
    Well,
    /// Another one answered first, which had been asked later.
    Late,
    /// It has answered nothing since, perhaps for the object's sake.
    Failed,
    /// It failed, perhaps for the object's sake.
    Doubtful,
}

/// One replica's health.
#[derive(Clone, Debug)]
pub struct Health {
    state: HealthState,
    reason: Reason,
    since: Instant,
    strikes: u32,
    /// When something failed or was late last.
    troubled: Instant,
    /// When it may be asked for a proof; of an ejected or absent one.
    until: Instant,
    /// Whether it has been asked for one.
    asked: bool,
    backoff: Duration,
    /// When it was ejected last, or found absent.
    ejected: Option<Instant>,
    /// When the last ejection ended.
    readmitted: Option<Instant>,
    /// Why it was ejected last.
    cause: Reason,
    ejections: u64,
}

/// A change of state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub from: HealthState,
    /// The state now.
    pub to: HealthState,
    /// Why.
    pub reason: Reason,
}

/// How a replica is, for those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthReading {
    /// Its state.
    pub state: HealthState,
    /// Why it is in it.
    pub reason: Reason,
    /// For how long.
    pub lasts: Duration,
    /// How often it was ejected, or found absent.
    pub ejections: u64,
}

impl Health {
    /// A replica that nothing is known of yet.
    pub fn new(now: Instant) -> Self {
        Self {
            state: HealthState::Healthy,
            reason: Reason::Started,
            since: now,
            strikes: 0,
            troubled: now,
            until: now,
            asked: false,
            backoff: SHORTEST,
            ejected: None,
            readmitted: None,
            cause: Reason::Started,
            ejections: 0,
        }
    }

    /// A replica that has not been in service yet, and is being looked at.
    pub fn expected(now: Instant) -> Self {
        Self { state: HealthState::Absent, asked: true, ..Self::new(now) }
    }

    /// Whether it has never been in service.
    fn is_expected(&self) -> bool {
        self.state == HealthState::Absent && self.reason == Reason::Started
    }

    /// The state as of the last event.
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// How it is.
    pub fn reading(&self, now: Instant) -> HealthReading {
        let lasts = now.saturating_duration_since(self.since);
        HealthReading { state: self.state, reason: self.reason, lasts, ejections: self.ejections }
    }

    /// Whether the replica may be asked, once at least.
    pub fn is_usable(&self) -> bool {
        !matches!(self.state, HealthState::Ejected | HealthState::Absent)
    }

    /// Whether it is asked without reserve: somebody is left while this one is.
    pub fn is_in(&self) -> bool {
        matches!(self.state, HealthState::Healthy | HealthState::Suspect)
    }

    /// Whether it was ejected after `at`.
    pub fn was_ejected_since(&self, at: Instant) -> bool {
        self.ejected.is_some_and(|ejected| ejected >= at)
    }

    /// Whether it was ejected for being slow, and has not shown yet that it is not.
    pub fn is_to_show_its_speed(&self) -> bool {
        self.state == HealthState::Probing && self.cause == Reason::Slow
    }

    /// Whether its time is over and it is to be asked for a proof, which
    /// [`Health::proved`] takes. Says so once.
    pub fn wants_proof(&mut self, now: Instant) -> bool {
        let wants = !self.is_usable() && !self.asked && now >= self.until;
        self.asked |= wants;
        wants
    }

    /// Whether it has been asked for a proof, which is to come.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// It was asked for a proof.
    pub fn proved(&mut self, proof: Proof, now: Instant) -> Option<Change> {
        self.asked = false;
        match proof {
            // Nothing speaks against it.
            Proof::Same if self.is_expected() => {
                self.transition(HealthState::Healthy, Reason::Started, now)
            }
            Proof::Same => self.transition(HealthState::Probing, Reason::Proved, now),
            Proof::Gone if self.state != HealthState::Absent => self.gone(now),
            Proof::Failed | Proof::Gone | Proof::Unclear => {
                self.wait(now);
                None
            }
        }
    }

    /// It delivered something.
    pub fn delivered(&mut self, now: Instant) -> Option<Change> {
        match self.state {
            // What had been stuck there has come back: time for a proof.
            HealthState::Ejected => {
                if self.cause != Reason::Slow {
                    self.until = self.until.min(now);
                }
                None
            }
            HealthState::Absent => None,
            HealthState::Probing => {
                self.strikes = 0;
                self.readmitted = Some(now);
                self.transition(HealthState::Healthy, Reason::Delivered, now)
            }
            HealthState::Healthy | HealthState::Suspect => {
                self.strikes = self.strikes.saturating_sub(1);
                if self.strikes > 0 {
                    return None;
                }
                self.transition(HealthState::Healthy, Reason::Delivered, now)
            }
        }
    }

    /// Something failed by its fault; `is_last` where nobody else could be asked.
    pub fn failed(&mut self, is_last: bool, now: Instant) -> Option<Change> {
        self.strikes = (self.strikes + A_FAILURE).min(OUT);
        self.troubled = now;
        if self.state == HealthState::Probing || self.strikes >= OUT {
            return self.eject(Reason::Failures, is_last, now);
        }
        self.transition(HealthState::Suspect, Reason::Failed, now)
    }

    /// Something takes longer than it should.
    pub fn late(&mut self, now: Instant) -> Option<Change> {
        self.troubled = now;
        self.transition(HealthState::Suspect, Reason::Late, now)
    }

    /// Time passed.
    pub fn elapsed(&mut self, now: Instant) -> Option<Change> {
        let is_quiet = now.saturating_duration_since(self.troubled) >= FORGIVEN_AFTER;
        if self.state != HealthState::Suspect || !is_quiet {
            return None;
        }
        self.strikes = 0;
        self.transition(HealthState::Healthy, Reason::Quiet, now)
    }

    /// It is not to be asked any more, for `reason`, where somebody else is left.
    pub fn eject(&mut self, reason: Reason, is_last: bool, now: Instant) -> Option<Change> {
        if is_last && self.state != HealthState::Probing {
            return self.transition(HealthState::Suspect, reason, now);
        }
        let change = self.transition(HealthState::Ejected, reason, now)?;
        self.out(change, now);
        Some(change)
    }

    /// Its mount has gone.
    pub fn gone(&mut self, now: Instant) -> Option<Change> {
        let change = self.transition(HealthState::Absent, Reason::Gone, now)?;
        self.out(change, now);
        Some(change)
    }

    /// Something was mounted or unmounted somewhere: it may be back.
    pub fn mounts_changed(&mut self, now: Instant) {
        if self.state == HealthState::Absent {
            self.until = self.until.min(now);
        }
    }

    fn out(&mut self, change: Change, now: Instant) {
        let is_soon =
            |at: Instant| now.saturating_duration_since(at) < self.backoff.saturating_mul(SOON);
        // One that was probed in vain has not been back at all.
        if change.from != HealthState::Probing && !self.readmitted.is_some_and(is_soon) {
            self.backoff = SHORTEST;
        }
        self.cause = change.reason;
        self.strikes = 0;
        self.asked = false;
        self.ejections += 1;
        self.ejected = Some(now);
        self.wait(now);
    }

    fn wait(&mut self, now: Instant) {
        self.until = now + self.backoff;
        self.backoff = (self.backoff * 2).min(LONGEST);
    }

    /// The only place that changes the state. Illegal edges change nothing.
    fn transition(&mut self, to: HealthState, reason: Reason, now: Instant) -> Option<Change> {
        use HealthState::{Absent, Ejected, Healthy, Probing, Suspect};
        let from = self.state;
        match (from, to) {
            (Healthy, Suspect)
            | (Suspect | Probing, Healthy)
            | (Healthy | Suspect | Probing, Ejected)
            | (Ejected | Absent, Probing)
            | (Absent, Healthy)
            | (Healthy | Suspect | Probing | Ejected, Absent) => {
                self.state = to;
                self.reason = reason;
                self.since = now;
                Some(Change { from, to, reason })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ejected(now: Instant) -> Health {
        let mut health = Health::new(now);
        assert!(health.eject(Reason::Stalled, false, now).is_some());
        health
    }

    /// Lets its time pass and has it prove itself.
    fn back(health: &mut Health, mut now: Instant) -> Instant {
        while !health.wants_proof(now) {
            now += Duration::from_millis(100);
        }
        assert!(health.proved(Proof::Same, now).is_some());
        now
    }

    #[test]
    fn three_failures_eject_and_a_proof_and_a_success_readmit() {
        let now = Instant::now();
        let mut health = Health::new(now);
        let states = [0; 3].map(|_| health.failed(false, now).map(|change| change.to));
        assert_eq!(states, [Some(HealthState::Suspect), None, Some(HealthState::Ejected)]);
        assert!(!health.is_usable() && !health.wants_proof(now));
        let now = now + SHORTEST;
        assert!(health.wants_proof(now) && !health.wants_proof(now), "once");
        assert!(!health.is_usable(), "not before it has proved itself");
        health.proved(Proof::Same, now);
        assert_eq!(health.state(), HealthState::Probing);
        health.delivered(now);
        assert_eq!(health.state(), HealthState::Healthy);
    }

    #[test]
    fn one_that_comes_late_is_healthy_and_one_that_was_lost_is_probed() {
        let now = Instant::now();
        let mut health = Health::expected(now);
        assert!(!health.is_usable() && !health.wants_proof(now), "it is being looked at");
        health.proved(Proof::Gone, now);
        assert!(!health.wants_proof(now) && health.wants_proof(now + SHORTEST));
        health.proved(Proof::Same, now + SHORTEST);
        assert_eq!(health.state(), HealthState::Healthy);
        health.gone(now + SHORTEST);
        let now = back(&mut health, now + SHORTEST);
        assert_eq!((health.state(), health.elapsed(now)), (HealthState::Probing, None));
    }

    #[test]
    fn more_than_a_fifth_of_failures_eject_and_less_do_not() {
        for (of, out) in [(3, true), (6, false)] {
            let now = Instant::now();
            let mut health = Health::new(now);
            for call in 0..600 {
                if call % of == 0 {
                    health.failed(false, now);
                } else {
                    health.delivered(now);
                }
            }
            assert_eq!(!health.is_usable(), out, "one failure in {of}");
        }
    }

    #[test]
    fn one_failure_makes_suspect_until_enough_is_delivered() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.failed(false, now);
        for _ in 0..A_FAILURE - 1 {
            assert_eq!(health.delivered(now), None);
        }
        assert_eq!(health.delivered(now).map(|change| change.to), Some(HealthState::Healthy));
    }

    #[test]
    fn a_suspect_that_is_not_asked_is_forgiven() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.failed(false, now);
        health.late(now + Duration::from_secs(3));
        assert_eq!(health.elapsed(now + FORGIVEN_AFTER), None);
        let change = health.elapsed(now + FORGIVEN_AFTER + Duration::from_secs(3));
        assert_eq!(change.map(|change| change.to), Some(HealthState::Healthy));
    }

    #[test]
    fn each_ejection_in_a_row_lasts_longer_up_to_a_limit_and_a_good_while_forgets() {
        let mut now = Instant::now();
        let mut health = ejected(now);
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            let start = now;
            now = back(&mut health, now);
            let lasted = now - start;
            assert!(lasted >= last && lasted <= LONGEST, "{lasted:?}");
            last = lasted;
            assert!(health.failed(false, now).is_some(), "one failure ends the probe");
        }
        assert_eq!(last, LONGEST);
        now = back(&mut health, now);
        health.delivered(now);
        now += LONGEST * (SOON + 1);
        health.eject(Reason::Stalled, false, now);
        assert_eq!(back(&mut health, now) - now, SHORTEST);
    }

    #[test]
    fn one_that_flaps_is_left_alone_longer_each_time() {
        let mut now = Instant::now();
        let mut health = ejected(now);
        let mut lengths = Vec::new();
        for _ in 0..4 {
            let start = now;
            now = back(&mut health, now);
            lengths.push((now - start).as_secs());
            health.delivered(now);
            now += Duration::from_millis(500);
            health.eject(Reason::Stalled, false, now);
        }
        assert_eq!(lengths, [1, 2, 4, 8]);
    }

    #[test]
    fn what_comes_back_from_one_that_hung_brings_its_proof_forward() {
        let now = Instant::now();
        let mut health = ejected(now);
        health.delivered(now);
        assert!(health.wants_proof(now) && !health.is_usable());
        // Of a slow one it shows nothing.
        let mut slow = Health::new(now);
        slow.eject(Reason::Slow, false, now);
        slow.delivered(now);
        assert!(!slow.wants_proof(now));
    }

    #[test]
    fn the_last_one_is_suspect_at_worst() {
        let now = Instant::now();
        let mut health = Health::new(now);
        for _ in 0..100 {
            health.failed(true, now);
            health.eject(Reason::Stalled, true, now);
        }
        assert_eq!(health.state(), HealthState::Suspect);
        assert!(health.eject(Reason::Stalled, false, now).is_some());
    }

    #[test]
    fn one_without_its_mount_is_not_asked_until_that_is_back() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.gone(now);
        health.delivered(now);
        health.failed(false, now);
        assert_eq!(health.state(), HealthState::Absent);
        let now = now + LONGEST;
        assert!(health.wants_proof(now));
        health.proved(Proof::Gone, now);
        assert!(!health.is_usable() && !health.wants_proof(now));
        assert!(health.wants_proof(now + LONGEST));
        health.proved(Proof::Same, now + LONGEST);
        assert_eq!(health.state(), HealthState::Probing);
    }

    #[test]
    fn whoever_mounts_something_need_not_wait() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.eject(Reason::Stalled, false, now);
        health.mounts_changed(now);
        assert!(!health.wants_proof(now), "its mount was not the matter");
        health.gone(now);
        assert!(!health.wants_proof(now));
        health.mounts_changed(now);
        assert!(health.wants_proof(now) && !health.wants_proof(now));
    }
}
