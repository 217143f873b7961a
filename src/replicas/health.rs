//! Whether a replica may be asked, as one state machine.
//!
//! | state | meaning | leaves |
//! |---|---|---|
//! | *healthy* | asked according to its speed | |
//! | *suspect* | failed or was late recently: asked, but its reads are hedged sooner, and metadata calls go to other replicas first | to healthy, after enough deliveries, or after a time without trouble |
//! | *ejected* | not asked, except by metadata calls in `copies` mode while it is merely slow | to probing, after its ejection time and a proof that it is still the same mount |
//! | *probing* | one attempt at a time, hedged soon | to healthy, after a delivery; back to ejected, after a failure |
//! | *absent* | its mount is gone, or was not there yet | as ejected; the first time to healthy |
//!
//! A failure is [`STRIKES_PER_FAILURE`] strikes, and a delivery takes one away. A replica is
//! ejected at [`STRIKES_TO_EJECT`]: three failures in a row, or more than a fifth of all. A replica
//! is also ejected if it delivers nothing while others do, or next to nothing compared with them
//! ([`SLOW_RATE_SHARE`]). Each ejection soon after the previous one lasts twice as long.
//!
//! Pure: time comes in as an argument, and so does whether another replica is left to ask: the last
//! replica is never ejected. Decisions that depend on all replicas are in [`super::health_board`].

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Strikes of one failure.
const STRIKES_PER_FAILURE: u32 = 4;

/// The number of strikes that ejects a replica.
pub(super) const STRIKES_TO_EJECT: u32 = 3 * STRIKES_PER_FAILURE;

/// A suspect without trouble for this long becomes healthy.
const SUSPECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A replica that is being probed is shown as healthy after this time without trouble.
const PROBING_TIMEOUT: Duration = Duration::from_secs(10);

/// The length of the first ejection. Short, because a replica that works again is useful.
pub const MIN_EJECTION: Duration = Duration::from_secs(1);

/// The longest ejection, and so the longest time until a recovered replica is noticed. One that
/// hung is noticed at once, when its calls return. While no replica is healthy, the time is
/// [`MIN_EJECTION`].
pub const MAX_EJECTION: Duration = Duration::from_secs(10);

/// An ejection within this many times the present backoff after the last readmission counts as a
/// relapse and keeps that backoff.
const RELAPSE_FACTOR: u32 = 4;

/// A replica that delivers less than this share of the best replica's rate is not worth a segment
/// that a reader waits for.
pub const SLOW_RATE_SHARE: f64 = 0.05;

/// A replica that was ejected as slow is readmitted at this share of the best replica's rate.
pub const READMIT_RATE_SHARE: f64 = 2.0 * SLOW_RATE_SHARE;

/// A replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Asked according to its speed.
    Healthy,
    /// Asked, but watched: it failed or was late recently.
    Suspect,
    /// Not asked.
    Ejected,
    /// One attempt at a time, to see whether it works again.
    Probing,
    /// Not asked: it is not in service.
    Absent,
}

/// Why a state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthReason {
    /// Nothing has happened yet.
    Started,
    /// It delivered data.
    Delivered,
    /// An attempt or a call failed.
    Failed,
    /// An attempt or a call was late.
    Late,
    /// Too many attempts or calls failed.
    Failures,
    /// It delivered nothing while others did.
    Stalled,
    /// An attempt passed the attempt deadline.
    Deadline,
    /// It delivered next to nothing compared with others.
    Slow,
    /// It proved to be the same mount.
    Proved,
    /// Its mount is gone.
    Gone,
    /// It had no trouble for a while.
    Quiet,
}

/// The result of a check whether a replica is still the same mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountCheck {
    /// It is the same mount.
    SameMount,
    /// It does not answer, or answers with an error.
    Failed,
    /// There is no mount at its path, or another one.
    MountGone,
    /// The check could not be made, so nothing is known of the replica.
    Inconclusive,
}

/// The outcome of a metadata call, for the health of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It answered.
    Success,
    /// Another replica answered first, although it was asked later.
    Late,
    /// The replica has answered nothing since the call. The cause may be the object.
    Unanswered,
    /// It failed. The cause may be the object.
    AmbiguousError,
}

/// One replica's health.
#[derive(Clone, Debug)]
pub struct Health {
    state: HealthState,
    reason: HealthReason,
    since: Instant,
    strikes: u32,
    /// When an attempt or a call last failed or was late.
    last_trouble: Instant,
    /// The earliest time of the next mount check; for an ejected or absent replica.
    next_check: Instant,
    /// When the time until then began.
    backed_off_at: Instant,
    /// Whether a mount check is in progress.
    is_check_pending: bool,
    backoff: Duration,
    /// When it was last ejected, or found absent.
    ejected_at: Option<Instant>,
    /// When the last ejection ended.
    readmitted_at: Option<Instant>,
    /// The reason for the last ejection.
    ejection_reason: HealthReason,
    ejections: u64,
    /// Whether its last metadata call or mount check was answered in time.
    answers_calls: bool,
}

/// A change of state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthTransition {
    /// The state before.
    pub from: HealthState,
    /// The state now.
    pub to: HealthState,
    /// Why.
    pub reason: HealthReason,
}

/// A replica's health, for status reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSnapshot {
    /// Its state.
    pub state: HealthState,
    /// The reason for the last change of state.
    pub reason: HealthReason,
    /// When that was.
    pub since: Instant,
    /// The number of ejections, absences included.
    pub ejections: u64,
}

impl Health {
    /// A replica without any history.
    pub fn new(now: Instant) -> Self {
        Self {
            state: HealthState::Healthy,
            reason: HealthReason::Started,
            since: now,
            strikes: 0,
            last_trouble: now,
            next_check: now,
            backed_off_at: now,
            is_check_pending: false,
            backoff: MIN_EJECTION,
            ejected_at: None,
            readmitted_at: None,
            ejection_reason: HealthReason::Started,
            ejections: 0,
            answers_calls: true,
        }
    }

    /// A replica that has not been in service yet and is being examined.
    pub fn awaiting_admission(now: Instant) -> Self {
        Self { state: HealthState::Absent, is_check_pending: true, ..Self::new(now) }
    }

    /// Whether it has never been in service.
    fn is_awaiting_admission(&self) -> bool {
        self.state == HealthState::Absent && self.reason == HealthReason::Started
    }

    /// The state as of the last event.
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Its present health, for people. On an idle volume no read proves a replica that has come
    /// back, so after a while without trouble it is shown as healthy. One that was slow has to prove
    /// its speed.
    pub fn snapshot(&self, now: Instant) -> HealthSnapshot {
        let ejections = self.ejections;
        let proved_at = self.since.max(self.last_trouble) + PROBING_TIMEOUT;
        let is_probed = self.state == HealthState::Probing && !self.is_speed_unproven();
        let (state, reason, since) = match is_probed && now >= proved_at {
            true => (HealthState::Healthy, HealthReason::Quiet, proved_at),
            false => (self.state, self.reason, self.since),
        };
        HealthSnapshot { state, reason, since, ejections }
    }

    /// Whether the replica may be asked at all.
    pub fn is_usable(&self) -> bool {
        !matches!(self.state, HealthState::Ejected | HealthState::Absent)
    }

    /// Whether it is asked without reserve. While such a replica is left, others may be ejected.
    pub fn is_in_rotation(&self) -> bool {
        matches!(self.state, HealthState::Healthy | HealthState::Suspect)
    }

    /// Whether it was ejected after `at`.
    pub fn was_ejected_since(&self, at: Instant) -> bool {
        self.ejected_at.is_some_and(|ejected| ejected >= at)
    }

    /// Whether it was ejected as slow and has not proved otherwise yet.
    pub fn is_speed_unproven(&self) -> bool {
        self.state == HealthState::Probing && self.ejection_reason == HealthReason::Slow
    }

    /// Whether it was ejected only because it delivers slowly, and still answers calls.
    pub fn is_merely_slow(&self) -> bool {
        let is_slow = self.ejection_reason == HealthReason::Slow;
        self.state == HealthState::Ejected && is_slow && self.answers_calls
    }

    /// Records whether it answers metadata calls and mount checks in time. Its reads do not count.
    pub fn set_answers_calls(&mut self, does: bool) {
        self.answers_calls = does;
    }

    /// Whether its ejection time is over and a mount check is due. Returns true once for each
    /// check; [`Health::mount_checked`] takes the result.
    pub fn take_due_mount_check(&mut self, now: Instant) -> bool {
        let wants = !self.is_usable() && !self.is_check_pending && now >= self.next_check;
        self.is_check_pending |= wants;
        wants
    }

    /// Whether a mount check is in progress.
    pub fn is_mount_check_pending(&self) -> bool {
        self.is_check_pending
    }

    /// Records the result of a mount check.
    pub fn mount_checked(&mut self, proof: MountCheck, now: Instant) -> Option<HealthTransition> {
        self.is_check_pending = false;
        match proof {
            // Nothing speaks against it.
            MountCheck::SameMount if self.is_awaiting_admission() => {
                self.transition(HealthState::Healthy, HealthReason::Started, now)
            }
            MountCheck::SameMount => {
                self.transition(HealthState::Probing, HealthReason::Proved, now)
            }
            MountCheck::MountGone if self.state != HealthState::Absent => self.mount_gone(now),
            MountCheck::Failed | MountCheck::MountGone | MountCheck::Inconclusive => {
                self.back_off(now);
                None
            }
        }
    }

    /// Records a delivery.
    pub fn record_delivery(&mut self, now: Instant) -> Option<HealthTransition> {
        match self.state {
            // A call that hung there has returned, so a mount check is worthwhile now.
            HealthState::Ejected => {
                if self.ejection_reason != HealthReason::Slow {
                    self.next_check = self.next_check.min(now);
                }
                None
            }
            HealthState::Absent => None,
            HealthState::Probing => {
                self.strikes = 0;
                self.readmitted_at = Some(now);
                self.transition(HealthState::Healthy, HealthReason::Delivered, now)
            }
            HealthState::Healthy | HealthState::Suspect => {
                self.strikes = self.strikes.saturating_sub(1);
                if self.strikes > 0 {
                    return None;
                }
                self.transition(HealthState::Healthy, HealthReason::Delivered, now)
            }
        }
    }

    /// Records a failure of the replica; `is_last` if no other replica could be asked.
    pub fn record_failure(&mut self, is_last: bool, now: Instant) -> Option<HealthTransition> {
        self.strikes = (self.strikes + STRIKES_PER_FAILURE).min(STRIKES_TO_EJECT);
        self.last_trouble = now;
        if self.state == HealthState::Probing || self.strikes >= STRIKES_TO_EJECT {
            return self.eject(HealthReason::Failures, is_last, now);
        }
        self.transition(HealthState::Suspect, HealthReason::Failed, now)
    }

    /// Records that an attempt or a call is late.
    pub fn record_late(&mut self, now: Instant) -> Option<HealthTransition> {
        self.last_trouble = now;
        self.transition(HealthState::Suspect, HealthReason::Late, now)
    }

    /// Makes a suspect without recent trouble healthy.
    pub fn clear_suspicion_if_quiet(&mut self, now: Instant) -> Option<HealthTransition> {
        let is_quiet = now.saturating_duration_since(self.last_trouble) >= SUSPECT_TIMEOUT;
        if self.state != HealthState::Suspect || !is_quiet {
            return None;
        }
        self.strikes = 0;
        self.transition(HealthState::Healthy, HealthReason::Quiet, now)
    }

    /// Ejects it for `reason`, if another replica is left.
    pub fn eject(
        &mut self,
        reason: HealthReason,
        is_last: bool,
        now: Instant,
    ) -> Option<HealthTransition> {
        if is_last && self.state != HealthState::Probing {
            return self.transition(HealthState::Suspect, reason, now);
        }
        let change = self.transition(HealthState::Ejected, reason, now)?;
        self.start_ejection(change, now);
        Some(change)
    }

    /// Records that its mount is gone.
    pub fn mount_gone(&mut self, now: Instant) -> Option<HealthTransition> {
        let change = self.transition(HealthState::Absent, HealthReason::Gone, now)?;
        self.start_ejection(change, now);
        Some(change)
    }

    /// Something was mounted or unmounted: an absent replica may be back.
    pub fn mounts_changed(&mut self, now: Instant) {
        if self.state == HealthState::Absent {
            self.next_check = self.next_check.min(now);
        }
    }

    /// The others are in doubt: this one is needed as soon as it works again.
    pub fn expedite_mount_check(&mut self) {
        self.next_check = self.next_check.min(self.backed_off_at + MIN_EJECTION);
    }

    fn start_ejection(&mut self, change: HealthTransition, now: Instant) {
        let is_soon = |at: Instant| {
            now.saturating_duration_since(at) < self.backoff.saturating_mul(RELAPSE_FACTOR)
        };
        // If its probe failed, it has not been back at all.
        if change.from != HealthState::Probing && !self.readmitted_at.is_some_and(is_soon) {
            self.backoff = MIN_EJECTION;
        }
        self.ejection_reason = change.reason;
        self.strikes = 0;
        self.is_check_pending = false;
        self.ejections += 1;
        self.ejected_at = Some(now);
        self.back_off(now);
    }

    fn back_off(&mut self, now: Instant) {
        self.backed_off_at = now;
        self.next_check = now + self.backoff;
        self.backoff = (self.backoff * 2).min(MAX_EJECTION);
    }

    /// The only function that changes the state. Illegal edges change nothing.
    fn transition(
        &mut self,
        to: HealthState,
        reason: HealthReason,
        now: Instant,
    ) -> Option<HealthTransition> {
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
                Some(HealthTransition { from, to, reason })
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
        assert!(health.eject(HealthReason::Stalled, false, now).is_some());
        health
    }

    /// Waits until a mount check is due, and passes it.
    fn back(health: &mut Health, mut now: Instant) -> Instant {
        while !health.take_due_mount_check(now) {
            now += Duration::from_millis(100);
        }
        assert!(health.mount_checked(MountCheck::SameMount, now).is_some());
        now
    }

    #[test]
    fn three_failures_eject_and_a_check_and_a_success_readmit() {
        let now = Instant::now();
        let mut health = Health::new(now);
        let states = [0; 3].map(|_| health.record_failure(false, now).map(|change| change.to));
        assert_eq!(states, [Some(HealthState::Suspect), None, Some(HealthState::Ejected)]);
        assert!(!health.is_usable() && !health.take_due_mount_check(now));
        let now = now + MIN_EJECTION;
        assert!(health.take_due_mount_check(now) && !health.take_due_mount_check(now), "once");
        assert!(!health.is_usable(), "not before it has proved itself");
        health.mount_checked(MountCheck::SameMount, now);
        assert_eq!(health.state(), HealthState::Probing);
        health.record_delivery(now);
        assert_eq!(health.state(), HealthState::Healthy);
    }

    #[test]
    fn a_late_replica_is_healthy_and_a_lost_one_is_probed() {
        let now = Instant::now();
        let mut health = Health::awaiting_admission(now);
        assert!(!health.is_usable() && !health.take_due_mount_check(now), "it is being looked at");
        health.mount_checked(MountCheck::MountGone, now);
        assert!(
            !health.take_due_mount_check(now) && health.take_due_mount_check(now + MIN_EJECTION)
        );
        health.mount_checked(MountCheck::SameMount, now + MIN_EJECTION);
        assert_eq!(health.state(), HealthState::Healthy);
        health.mount_gone(now + MIN_EJECTION);
        let now = back(&mut health, now + MIN_EJECTION);
        assert_eq!(
            (health.state(), health.clear_suspicion_if_quiet(now)),
            (HealthState::Probing, None)
        );
    }

    #[test]
    fn only_a_failure_rate_above_a_fifth_ejects() {
        for (of, out) in [(3, true), (6, false)] {
            let now = Instant::now();
            let mut health = Health::new(now);
            for call in 0..600 {
                if call % of == 0 {
                    health.record_failure(false, now);
                } else {
                    health.record_delivery(now);
                }
            }
            assert_eq!(!health.is_usable(), out, "one failure in {of}");
        }
    }

    #[test]
    fn a_replica_is_suspect_after_a_failure_until_it_delivers() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.record_failure(false, now);
        for _ in 0..STRIKES_PER_FAILURE - 1 {
            assert_eq!(health.record_delivery(now), None);
        }
        assert_eq!(health.record_delivery(now).map(|change| change.to), Some(HealthState::Healthy));
    }

    #[test]
    fn an_unused_suspect_becomes_healthy_again() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.record_failure(false, now);
        health.record_late(now + Duration::from_secs(3));
        assert_eq!(health.clear_suspicion_if_quiet(now + SUSPECT_TIMEOUT), None);
        let change =
            health.clear_suspicion_if_quiet(now + SUSPECT_TIMEOUT + Duration::from_secs(3));
        assert_eq!(change.map(|change| change.to), Some(HealthState::Healthy));
    }

    #[test]
    fn an_unused_probed_replica_is_shown_as_healthy_unless_it_was_slow() {
        for (reason, recovers) in [(HealthReason::Stalled, true), (HealthReason::Slow, false)] {
            let now = Instant::now();
            let mut health = Health::new(now);
            health.eject(reason, false, now);
            health.mount_checked(MountCheck::SameMount, now);
            let late = now + PROBING_TIMEOUT / 2;
            health.record_late(late);
            assert_eq!(health.snapshot(now + PROBING_TIMEOUT).state, HealthState::Probing);
            let shown = health.snapshot(late + PROBING_TIMEOUT).state;
            assert_eq!(shown == HealthState::Healthy, recovers);
            assert_eq!(health.state(), HealthState::Probing, "its first read is a probe");
        }
    }

    #[test]
    fn repeated_ejections_last_longer_up_to_a_limit() {
        let mut now = Instant::now();
        let mut health = ejected(now);
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            let start = now;
            now = back(&mut health, now);
            let lasted = now - start;
            assert!(lasted >= last && lasted <= MAX_EJECTION, "{lasted:?}");
            last = lasted;
            assert!(health.record_failure(false, now).is_some(), "one failure ends the probe");
        }
        assert_eq!(last, MAX_EJECTION);
        now = back(&mut health, now);
        health.record_delivery(now);
        now += MAX_EJECTION * (RELAPSE_FACTOR + 1);
        health.eject(HealthReason::Stalled, false, now);
        assert_eq!(back(&mut health, now) - now, MIN_EJECTION);
    }

    #[test]
    fn a_flapping_replica_is_ejected_longer_each_time() {
        let mut now = Instant::now();
        let mut health = ejected(now);
        let mut lengths = Vec::new();
        for _ in 0..4 {
            let start = now;
            now = back(&mut health, now);
            lengths.push((now - start).as_secs());
            health.record_delivery(now);
            now += Duration::from_millis(500);
            health.eject(HealthReason::Stalled, false, now);
        }
        assert_eq!(lengths, [1, 2, 4, 8]);
    }

    #[test]
    fn an_answer_from_a_hung_replica_advances_its_check() {
        let now = Instant::now();
        let mut health = ejected(now);
        health.record_delivery(now);
        assert!(health.take_due_mount_check(now) && !health.is_usable());
        // For a replica ejected as slow, a delivery shows nothing.
        let mut slow = Health::new(now);
        slow.eject(HealthReason::Slow, false, now);
        slow.record_delivery(now);
        assert!(!slow.take_due_mount_check(now));
    }

    #[test]
    fn the_last_replica_becomes_suspect_at_worst() {
        let now = Instant::now();
        let mut health = Health::new(now);
        for _ in 0..100 {
            health.record_failure(true, now);
            health.eject(HealthReason::Stalled, true, now);
        }
        assert_eq!(health.state(), HealthState::Suspect);
        assert!(health.eject(HealthReason::Stalled, false, now).is_some());
    }

    #[test]
    fn a_replica_without_its_mount_is_not_used() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.mount_gone(now);
        health.record_delivery(now);
        health.record_failure(false, now);
        assert_eq!(health.state(), HealthState::Absent);
        let now = now + MAX_EJECTION;
        assert!(health.take_due_mount_check(now));
        health.mount_checked(MountCheck::MountGone, now);
        assert!(!health.is_usable() && !health.take_due_mount_check(now));
        assert!(health.take_due_mount_check(now + MAX_EJECTION));
        health.mount_checked(MountCheck::SameMount, now + MAX_EJECTION);
        assert_eq!(health.state(), HealthState::Probing);
    }

    #[test]
    fn a_new_mount_is_checked_at_once() {
        let now = Instant::now();
        let mut health = Health::new(now);
        health.eject(HealthReason::Stalled, false, now);
        health.mounts_changed(now);
        assert!(!health.take_due_mount_check(now), "its mount was not the matter");
        health.mount_gone(now);
        assert!(!health.take_due_mount_check(now));
        health.mounts_changed(now);
        assert!(health.take_due_mount_check(now) && !health.take_due_mount_check(now));
    }
}
