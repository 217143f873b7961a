//! The health of all replicas together: which to ask, and which must prove themselves.
//!
//! [`super::health`] has the rules for one replica. This module has the rules that involve several:
//! the last replica is never ejected, and a replica is slow only in comparison with the others.
//!
//! Pure: the owner makes the mount checks. It polls [`HealthBoard::due_mount_checks`] and reports
//! each result with [`HealthBoard::mount_checked`].

use std::time::{Duration, Instant};

use super::health::{
    CallOutcome, Health, HealthReason, HealthSnapshot, HealthState, HealthTransition, MountCheck,
    READMIT_RATE_SHARE, SLOW_RATE_SHARE,
};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// A replica is slow after this long at a slow rate. It is longer than a server takes to collect
/// garbage, or a disk to spin up.
const SLOW_TIMEOUT: Duration = Duration::from_secs(1);

/// A root without an answer for this long is silent. Ambiguous errors then count against its
/// replica. A working server answers for its root sooner.
const ROOT_TIMEOUT: Duration = Duration::from_secs(1);

/// A check of a replica's root, after errors that may be an object's or the replica's. The root's
/// answer decides.
#[derive(Clone, Copy, Debug)]
struct RootCheck {
    /// Errors since it started; they count if the root fails.
    ambiguous_errors: u32,
    started_at: Instant,
    /// Whether the root has been asked.
    is_sent: bool,
    /// Whether the root was silent for [`ROOT_TIMEOUT`]: from then on each error counts.
    is_timed_out: bool,
    /// If set, the replica is ejected for this reason if its root fails or is silent.
    eject_reason: Option<HealthReason>,
}

/// An answer of a replica's root.
#[derive(Clone, Copy, Debug)]
struct RootAnswer {
    asked_at: Instant,
    answered_at: Instant,
}

/// How long a good answer from the root clears the replica of the suspicion that it hangs.
const ROOT_CHECK_VALIDITY: Duration = Duration::from_secs(1);

/// Whether any replica that could serve a request answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responsiveness {
    /// One answers, or all that count fail with errors.
    Responsive,
    /// Their roots are being asked.
    Unknown,
    /// None answers.
    Unresponsive,
}

impl RootCheck {
    fn new(now: Instant) -> Self {
        Self {
            ambiguous_errors: 0,
            started_at: now,
            is_sent: false,
            is_timed_out: false,
            eject_reason: None,
        }
    }
}

/// The health of all replicas.
#[derive(Clone, Debug)]
pub struct HealthBoard {
    health: ReplicaMap<Health>,
    /// Since when each replica has been slow.
    slow_since: ReplicaMap<Option<Instant>>,
    names: ReplicaMap<String>,
    /// Checks of the replicas' roots in progress.
    root_checks: ReplicaMap<Option<RootCheck>>,
    /// Whether each replica's last failure was an error, rather than lateness or silence.
    last_failed_by_error: ReplicaMap<bool>,
    /// When each root last passed a [`RootCheck`].
    last_root_check_passed: ReplicaMap<Option<Instant>>,
    /// When each root was asked last.
    root_asked_at: ReplicaMap<Option<Instant>>,
    /// The last good answer of each root in any check.
    last_root_ok: ReplicaMap<Option<RootAnswer>>,
    /// The last error of each root.
    last_root_error: ReplicaMap<Option<RootAnswer>>,
    /// Since when each root has not answered a check for [`HealthBoard::responsiveness`].
    root_unresponsive_since: ReplicaMap<Option<Instant>>,
    /// Whether an ejected replica must pass a mount check before it is asked again.
    requires_mount_checks: bool,
}

impl HealthBoard {
    /// Replicas of these names, all healthy. Without `proofs`, time alone ends an ejection.
    pub fn new(names: ReplicaMap<String>, proofs: bool, now: Instant) -> Self {
        Self {
            health: names.map(|_, _| Health::new(now)),
            slow_since: names.map(|_, _| None),
            root_checks: names.map(|_, _| None),
            last_failed_by_error: names.map(|_, _| false),
            last_root_check_passed: names.map(|_, _| None),
            root_asked_at: names.map(|_, _| None),
            last_root_ok: names.map(|_, _| None),
            last_root_error: names.map(|_, _| None),
            root_unresponsive_since: names.map(|_, _| None),
            names,
            requires_mount_checks: proofs,
        }
    }

    /// A replica's state as of the last event.
    pub fn state(&self, id: ReplicaId) -> HealthState {
        self.health[id].state()
    }

    /// A replica's health.
    pub fn snapshot(&self, id: ReplicaId, now: Instant) -> HealthSnapshot {
        self.health[id].snapshot(now)
    }

    /// Replicas that may be asked; all of them if none should be.
    pub fn usable(&mut self, now: Instant) -> ReplicaSet {
        if !self.requires_mount_checks {
            for id in self.due_mount_checks(now).iter() {
                self.mount_checked(id, MountCheck::SameMount, now);
            }
        }
        self.clear_quiet_suspects(now);
        let usable = self.replicas_where(Health::is_usable);
        if usable.is_empty() { self.health.all() } else { usable }
    }

    fn clear_quiet_suspects(&mut self, now: Instant) {
        for id in self.suspects().iter() {
            let change = self.health[id].clear_suspicion_if_quiet(now);
            self.log_transition(id, change);
        }
    }

    /// Whether a replica was ejected after `at`.
    pub fn was_ejected_since(&self, id: ReplicaId, at: Instant) -> bool {
        self.health[id].was_ejected_since(at)
    }

    /// Whether no replica is ejected, absent or probing, and no root is being checked.
    pub fn all_available(&self) -> bool {
        let is_settled = |id: ReplicaId| self.root_checks[id].is_none();
        self.health.iter().all(|(id, health)| health.is_in_rotation() && is_settled(id))
    }

    /// Whether no replica is in doubt: all are available, and none is suspect.
    pub fn is_calm(&self) -> bool {
        self.all_available() && self.suspects().is_empty()
    }

    /// Replicas in the suspect state.
    pub fn suspects(&self) -> ReplicaSet {
        self.replicas_where(|health| health.state() == HealthState::Suspect)
    }

    /// Replicas that were ejected only because they deliver slowly. They answer calls, and do not
    /// leave a mount check without an answer.
    pub fn merely_slow(&self, now: Instant) -> ReplicaSet {
        let is_silent = |id: &ReplicaId| {
            let asked = self.root_asked_at[*id].filter(|_| self.is_root_asked(*id));
            asked.is_some_and(|at| now.saturating_duration_since(at) >= ROOT_TIMEOUT)
        };
        let slow = self.replicas_where(Health::is_merely_slow);
        slow.iter().filter(|id| !is_silent(id)).fold(ReplicaSet::EMPTY, ReplicaSet::with)
    }

    fn is_root_asked(&self, id: ReplicaId) -> bool {
        let is_checked = self.root_checks[id].is_some_and(|check| check.is_sent);
        is_checked || self.health[id].is_mount_check_pending()
    }

    /// Suspects that failed with errors. Asking one costs little time, and only its answers can
    /// show that most of its calls succeed.
    pub fn error_suspects(&self) -> ReplicaSet {
        let refusing = self.last_failed_by_error.iter().filter(|(_, refuses)| **refuses);
        refusing.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id)).and(self.suspects())
    }

    /// Replicas that need a mount check now. Each is returned once until its result is reported.
    pub fn due_mount_checks(&mut self, now: Instant) -> ReplicaSet {
        let mut wanted = ReplicaSet::EMPTY;
        self.clear_quiet_suspects(now);
        let is_any_healthy = self
            .health
            .iter()
            .any(|(_, health)| health.snapshot(now).state == HealthState::Healthy);
        for (id, health) in self.health.iter_mut() {
            if !is_any_healthy {
                health.expedite_mount_check();
            }
            if health.take_due_mount_check(now) {
                wanted = wanted.with(id);
            }
        }
        for id in self.health.all().iter() {
            let Some(trial) = &mut self.root_checks[id] else { continue };
            if !trial.is_sent {
                trial.is_sent = true;
                wanted = wanted.with(id);
            } else if !trial.is_timed_out
                && now.saturating_duration_since(trial.started_at) >= ROOT_TIMEOUT
            {
                trial.is_timed_out = true;
                let trial = *trial;
                self.apply_root_failure(id, trial, now);
            }
        }
        for id in wanted.iter() {
            self.root_asked_at[id] = Some(now);
        }
        wanted
    }

    /// An attempt or a call failed, because of the replica or the object. The replica's root is
    /// checked ([`HealthBoard::due_mount_checks`]). If the root is fine, the error was the object's
    /// and does not count.
    pub fn record_ambiguous_error(&mut self, id: ReplicaId, now: Instant) {
        if !self.requires_mount_checks {
            return self.record_failure(id, now);
        }
        if !self.health[id].is_usable() && !self.health[id].is_merely_slow() {
            return;
        }
        let trial = self.root_checks[id].get_or_insert(RootCheck::new(now));
        if trial.is_timed_out {
            return self.record_failure(id, now);
        }
        trial.ambiguous_errors = trial.ambiguous_errors.saturating_add(1);
    }

    /// A call hangs, because of the replica or the object. If its root fails or is silent, the
    /// replica is ejected for `reason`.
    pub fn eject_unless_root_ok(&mut self, id: ReplicaId, reason: HealthReason, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < ROOT_CHECK_VALIDITY;
        let is_silent = self.root_checks[id].is_some_and(|trial| trial.is_timed_out);
        if !self.requires_mount_checks || is_silent {
            return self.eject(id, reason, now);
        }
        if !self.health[id].is_usable() || self.last_root_check_passed[id].is_some_and(is_recent) {
            return;
        }
        self.root_checks[id].get_or_insert(RootCheck::new(now)).eject_reason = Some(reason);
    }

    /// Whether any replica of a set answers, for a request that has waited `since`. Answers to
    /// earlier questions do not count. This has their roots checked
    /// ([`HealthBoard::due_mount_checks`]), so call it only for requests that have waited for long,
    /// and repeat it.
    ///
    /// Replicas that fail with errors, are absent, or are ejected without a check in progress do
    /// not count while there are others.
    pub fn responsiveness(
        &mut self,
        of: ReplicaSet,
        since: Instant,
        now: Instant,
    ) -> Responsiveness {
        let mut is_any_silent = false;
        let mut is_any_unclear = false;
        for id in of.and(self.health.all()).iter() {
            match self.replica_responsiveness(id, since, now) {
                Some(Responsiveness::Responsive) => return Responsiveness::Responsive,
                Some(Responsiveness::Unknown) => is_any_unclear = true,
                Some(Responsiveness::Unresponsive) => is_any_silent = true,
                None => {}
            }
        }
        match (is_any_unclear, is_any_silent) {
            (true, _) => Responsiveness::Unknown,
            (false, true) => Responsiveness::Unresponsive,
            (false, false) => Responsiveness::Responsive,
        }
    }

    /// Whether a replica answers; `None` if it does not count.
    fn replica_responsiveness(
        &mut self,
        id: ReplicaId,
        since: Instant,
        now: Instant,
    ) -> Option<Responsiveness> {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < ROOT_CHECK_VALIDITY;
        let counts = |answer: RootAnswer| answer.asked_at >= since && is_recent(answer.answered_at);
        if self.health[id].is_usable() {
            if self.last_root_ok[id].is_some_and(counts) {
                return Some(Responsiveness::Responsive);
            }
            if self.last_root_error[id].is_some_and(counts) {
                return None;
            }
            self.root_checks[id].get_or_insert(RootCheck::new(now));
        } else if self.state(id) == HealthState::Absent || !self.health[id].is_mount_check_pending()
        {
            return None;
        }
        let silent_since = *self.root_unresponsive_since[id].get_or_insert(now);
        match now.saturating_duration_since(silent_since) >= ROOT_TIMEOUT {
            true => Some(Responsiveness::Unresponsive),
            false => Some(Responsiveness::Unknown),
        }
    }

    fn apply_root_failure(&mut self, id: ReplicaId, trial: RootCheck, now: Instant) {
        // More failures than eject the replica make no difference.
        for _ in 0..trial.ambiguous_errors.min(super::health::STRIKES_TO_EJECT) {
            self.record_failure(id, now);
        }
        if let Some(reason) = trial.eject_reason {
            self.eject(id, reason, now);
        }
    }

    /// Records the result of a mount check.
    pub fn mount_checked(&mut self, id: ReplicaId, proof: MountCheck, now: Instant) {
        let asked_at = self.root_asked_at[id].unwrap_or(now);
        let answer = RootAnswer { asked_at, answered_at: now };
        match proof {
            MountCheck::SameMount => self.last_root_ok[id] = Some(answer),
            MountCheck::Failed => self.last_root_error[id] = Some(answer),
            MountCheck::MountGone | MountCheck::Inconclusive => {}
        }
        if proof != MountCheck::Inconclusive {
            self.root_unresponsive_since[id] = None;
            self.health[id].set_answers_calls(proof == MountCheck::SameMount);
        }
        // If the replica was ejected since, this result is that of its mount check.
        if let Some(trial) = self.root_checks[id].take()
            && !self.health[id].is_mount_check_pending()
        {
            match proof {
                MountCheck::Failed if !trial.is_timed_out => {
                    self.apply_root_failure(id, trial, now);
                    self.last_failed_by_error[id] = true;
                }
                MountCheck::MountGone => self.mount_gone(id, now),
                MountCheck::SameMount => self.last_root_check_passed[id] = Some(now),
                MountCheck::Failed | MountCheck::Inconclusive => {}
            }
            return;
        }
        let change = self.health[id].mount_checked(proof, now);
        self.log_transition(id, change);
    }

    /// Records the outcome of a metadata call on a replica.
    pub fn record_call(&mut self, id: ReplicaId, outcome: CallOutcome, now: Instant) {
        match outcome {
            CallOutcome::Success => {
                self.health[id].set_answers_calls(true);
                self.record_delivery(id, now);
            }
            CallOutcome::Late => {
                self.health[id].set_answers_calls(false);
                self.record_late(id, now);
            }
            CallOutcome::Unanswered => {
                self.health[id].set_answers_calls(false);
                // The object may be the one that hangs: the replica's root decides.
                self.record_late(id, now);
                self.record_ambiguous_error(id, now);
            }
            CallOutcome::AmbiguousError => self.record_ambiguous_error(id, now),
        }
    }

    /// Records a delivery that says nothing about the replica's speed.
    pub fn record_delivery(&mut self, id: ReplicaId, now: Instant) {
        if !self.health[id].is_speed_unproven() {
            let change = self.health[id].record_delivery(now);
            self.log_transition(id, change);
        }
    }

    /// Records a delivery at `rate` bytes a second; `best` is the best rate of the other replicas.
    pub fn record_delivery_rate(&mut self, id: ReplicaId, rate: f64, best: f64, now: Instant) {
        let is_slow = self.health[id].is_speed_unproven() && rate < READMIT_RATE_SHARE * best;
        let change = match is_slow {
            true => self.health[id].eject(HealthReason::Slow, false, now),
            false => self.health[id].record_delivery(now),
        };
        self.log_transition(id, change);
    }

    /// Records a failure of the replica.
    pub fn record_failure(&mut self, id: ReplicaId, now: Instant) {
        let is_last = self.is_last_in_rotation(id);
        self.last_failed_by_error[id] = false;
        let change = self.health[id].record_failure(is_last, now);
        self.log_transition(id, change);
    }

    /// Records that an attempt or a call is late.
    pub fn record_late(&mut self, id: ReplicaId, now: Instant) {
        self.last_failed_by_error[id] = false;
        let change = self.health[id].record_late(now);
        self.log_transition(id, change);
    }

    /// Ejects a replica for `reason`, if another one is left.
    pub fn eject(&mut self, id: ReplicaId, reason: HealthReason, now: Instant) {
        let is_last = self.is_last_in_rotation(id);
        let change = self.health[id].eject(reason, is_last, now);
        self.log_transition(id, change);
    }

    /// Marks a replica that has not been in service yet and is being examined.
    pub fn mark_awaiting_admission(&mut self, id: ReplicaId, now: Instant) {
        self.health[id] = Health::awaiting_admission(now);
    }

    /// Records that a replica's mount is gone.
    pub fn mount_gone(&mut self, id: ReplicaId, now: Instant) {
        let change = self.health[id].mount_gone(now);
        self.log_transition(id, change);
    }

    /// Something was mounted or unmounted: absent replicas may be back.
    pub fn mounts_changed(&mut self, now: Instant) {
        for id in self.health.all().iter() {
            self.health[id].mounts_changed(now);
        }
    }

    /// Ejects replicas that are much slower than the best. `rates` are in bytes a second, `None` if
    /// unknown or old. Call it every few dozen milliseconds while anything is in flight.
    pub fn eject_slow(&mut self, rates: &ReplicaMap<Option<f64>>, now: Instant) {
        let usable = self.replicas_where(Health::is_usable);
        let best = |but: ReplicaId| {
            let others = usable.iter().filter(|id| *id != but);
            others.filter_map(|id| rates[id]).fold(0.0, f64::max)
        };
        for id in usable.iter() {
            let is_slow = rates[id].is_some_and(|rate| rate < SLOW_RATE_SHARE * best(id));
            let since = match is_slow {
                true => *self.slow_since[id].get_or_insert(now),
                false => {
                    self.slow_since[id] = None;
                    continue;
                }
            };
            if self.health[id].is_in_rotation()
                && now.saturating_duration_since(since) >= SLOW_TIMEOUT
            {
                self.slow_since[id] = None;
                self.eject(id, HealthReason::Slow, now);
            }
        }
    }

    fn is_last_in_rotation(&self, id: ReplicaId) -> bool {
        let others = self.replicas_where(Health::is_in_rotation).minus(ReplicaSet::EMPTY.with(id));
        others.is_empty()
    }

    fn replicas_where(&self, of: impl Fn(&Health) -> bool) -> ReplicaSet {
        let mut set = ReplicaSet::EMPTY;
        for (id, health) in self.health.iter() {
            if of(health) {
                set = set.with(id);
            }
        }
        set
    }

    fn log_transition(&self, id: ReplicaId, change: Option<HealthTransition>) {
        use HealthState::{Absent, Ejected, Healthy, Suspect};
        let Some(HealthTransition { from, to, reason }) = change else { return };
        let replica = &self.names[id];
        match (from, to) {
            (_, Ejected | Absent) => {
                tracing::warn!(%replica, ?from, ?to, ?reason, "the replica's health changed");
            }
            // The caller of an admission logs it itself.
            (Healthy, Suspect) | (Suspect, Healthy) | (Absent, Healthy) => {
                tracing::debug!(%replica, ?from, ?to, ?reason, "the replica's health changed");
            }
            _ => tracing::info!(%replica, ?from, ?to, ?reason, "the replica's health changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::health::{MAX_EJECTION, MIN_EJECTION};

    fn board() -> (HealthBoard, Instant) {
        let now = Instant::now();
        let names = ["r1", "r2", "r3"].map(str::to_owned).into_iter().collect();
        (HealthBoard::new(names, true, now), now)
    }

    fn id(index: usize) -> ReplicaId {
        ReplicaId::new(index)
    }

    #[test]
    fn a_merely_slow_replica_answers_calls() {
        let slow = |board: &HealthBoard, now| board.merely_slow(now).contains(id(0));
        let ejected = |reason| {
            let (mut board, now) = board();
            board.eject(id(0), reason, now);
            (board, now)
        };
        let (board, now) = ejected(HealthReason::Stalled);
        assert!(!slow(&board, now));
        let (mut board, now) = ejected(HealthReason::Slow);
        board.record_late(id(0), now);
        assert!(slow(&board, now), "its reads are late");
        assert!(!board.usable(now).contains(id(0)));
        board.record_call(id(0), CallOutcome::Late, now);
        assert!(!slow(&board, now));
        board.record_call(id(0), CallOutcome::Success, now);
        assert!(slow(&board, now), "the late answer");
        // Errors: its root decides.
        board.record_call(id(0), CallOutcome::AmbiguousError, now);
        assert!(board.due_mount_checks(now).contains(id(0)));
        board.mount_checked(id(0), MountCheck::Failed, now);
        assert!(!slow(&board, now));
        board.record_call(id(0), CallOutcome::AmbiguousError, now);
        assert!(board.due_mount_checks(now).is_empty(), "it is checked after its ejection");
    }

    #[test]
    fn a_slow_replica_whose_mount_check_hangs_is_not_asked() {
        let (mut board, now) = board();
        board.eject(id(0), HealthReason::Slow, now);
        let asked = now + MIN_EJECTION;
        assert!(board.due_mount_checks(asked).contains(id(0)));
        assert!(board.merely_slow(asked).contains(id(0)));
        assert!(board.merely_slow(asked + ROOT_TIMEOUT).is_empty());
        board.mount_checked(id(0), MountCheck::SameMount, asked + ROOT_TIMEOUT);
        assert_eq!(board.state(id(0)), HealthState::Probing);
    }

    #[test]
    fn one_replica_always_stays_in_rotation() {
        let (mut board, now) = board();
        for replica in [0, 1, 2, 0, 1, 2] {
            for _ in 0..5 {
                board.record_failure(id(replica), now);
            }
            board.eject(id(replica), HealthReason::Stalled, now);
            assert!(!board.replicas_where(Health::is_in_rotation).is_empty());
        }
        assert_eq!(board.state(id(2)), HealthState::Suspect);
    }

    #[test]
    fn a_healthy_root_clears_ambiguous_errors() {
        let (mut board, now) = board();
        for _ in 0..100 {
            board.record_ambiguous_error(id(1), now);
        }
        assert_eq!(board.due_mount_checks(now), ReplicaSet::EMPTY.with(id(1)));
        assert!(board.due_mount_checks(now).is_empty(), "once");
        board.mount_checked(id(1), MountCheck::SameMount, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy);
        assert!(board.all_available());
    }

    #[test]
    fn ambiguous_errors_count_if_the_root_fails_or_hangs() {
        let (mut board, now) = board();
        for _ in 0..3 {
            assert_ne!(board.state(id(1)), HealthState::Ejected);
            board.record_ambiguous_error(id(1), now);
            assert!(!board.due_mount_checks(now).is_empty());
            board.mount_checked(id(1), MountCheck::Failed, now);
        }
        assert_eq!(board.state(id(1)), HealthState::Ejected, "three in a row");
        board.record_ambiguous_error(id(2), now);
        let _ = board.due_mount_checks(now);
        let now = now + ROOT_TIMEOUT;
        assert!(!board.due_mount_checks(now).contains(id(2)), "it is being asked");
        assert_eq!(board.state(id(2)), HealthState::Suspect);
        board.record_ambiguous_error(id(2), now);
        board.record_ambiguous_error(id(2), now);
        assert_eq!(board.state(id(2)), HealthState::Ejected);
        // The late answer belongs to the check before the ejection.
        board.mount_checked(id(2), MountCheck::SameMount, now);
        assert_eq!(board.state(id(2)), HealthState::Ejected);
    }

    fn all() -> ReplicaSet {
        (0..3).fold(ReplicaSet::EMPTY, |all, index| all.with(id(index)))
    }

    #[test]
    fn all_replicas_are_silent_until_a_root_answers() {
        let (mut board, now) = board();
        let start = now;
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unknown);
        assert_eq!(board.due_mount_checks(now), all(), "all roots are asked");
        let now = now + ROOT_TIMEOUT;
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unresponsive);
        // However their silence ends, and although not all are asked again at once.
        for replica in 0..3 {
            board.eject(id(replica), HealthReason::Stalled, now);
        }
        let now = now + MAX_EJECTION;
        let _ = board.due_mount_checks(now);
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unresponsive);
        board.mount_checked(id(1), MountCheck::SameMount, now);
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Responsive);
        let alone = ReplicaSet::EMPTY.with(id(0));
        assert_eq!(
            board.responsiveness(alone, start, now),
            Responsiveness::Unresponsive,
            "the others cannot serve it"
        );
    }

    #[test]
    fn a_fresh_answer_of_one_root_ends_the_silence() {
        let (mut board, now) = board();
        let start = now;
        let _ = board.responsiveness(all(), start, now);
        let _ = board.due_mount_checks(now);
        board.mount_checked(id(2), MountCheck::SameMount, now);
        let late = now + ROOT_CHECK_VALIDITY - Duration::from_millis(1);
        assert_eq!(board.responsiveness(all(), start, late), Responsiveness::Responsive);
        let now = now + ROOT_CHECK_VALIDITY;
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unknown);
        assert_eq!(board.due_mount_checks(now), ReplicaSet::EMPTY.with(id(2)), "it is asked again");
    }

    /// Otherwise readers would wait for the replicas that do not answer.
    #[test]
    fn a_recovered_replica_is_noticed_soon_while_no_other_is_healthy() {
        let (mut board, mut now) = board();
        board.mount_checked(id(0), MountCheck::MountGone, now);
        // It is gone for long, and looked for ever less often.
        for _ in 0..5 {
            now += MAX_EJECTION;
            assert!(board.due_mount_checks(now).contains(id(0)));
            board.mount_checked(id(0), MountCheck::MountGone, now);
        }
        now += MIN_EJECTION;
        assert!(board.due_mount_checks(now).is_empty(), "two are healthy");
        board.record_late(id(1), now);
        assert!(board.due_mount_checks(now).is_empty(), "one is healthy");
        board.record_late(id(2), now);
        assert!(board.due_mount_checks(now).contains(id(0)), "none is healthy");
        board.mount_checked(id(0), MountCheck::MountGone, now);
        now += MIN_EJECTION / 2;
        assert!(board.due_mount_checks(now).is_empty(), "not without a pause");
        now += MIN_EJECTION / 2;
        assert!(board.due_mount_checks(now).contains(id(0)));
        // On an idle volume nothing proves the others; they count as healthy after a while.
        board.mount_checked(id(0), MountCheck::MountGone, now);
        for other in [id(1), id(2)] {
            board.eject(other, HealthReason::Failures, now);
        }
        now += MIN_EJECTION;
        let _ = board.due_mount_checks(now);
        board.mount_checked(id(1), MountCheck::SameMount, now);
        assert_eq!(board.state(id(1)), HealthState::Probing);
        now += MAX_EJECTION;
        let _ = board.due_mount_checks(now);
        board.mount_checked(id(0), MountCheck::MountGone, now);
        assert!(board.due_mount_checks(now + MIN_EJECTION).is_empty());
    }

    /// Or a request of a volume with short deadlines would end at the shorter one.
    #[test]
    fn an_answer_to_an_earlier_question_does_not_end_a_silence() {
        let (mut board, now) = board();
        let _ = board.responsiveness(all(), now, now);
        let _ = board.due_mount_checks(now);
        let start = now + Duration::from_millis(1);
        let later = now + Duration::from_millis(2);
        board.mount_checked(id(2), MountCheck::SameMount, later);
        assert_eq!(board.responsiveness(all(), now, later), Responsiveness::Responsive);
        assert_eq!(board.responsiveness(all(), start, later), Responsiveness::Unknown);
        assert_eq!(board.due_mount_checks(later), ReplicaSet::EMPTY.with(id(2)), "asked again");
        let later = now + Duration::from_millis(3);
        board.mount_checked(id(2), MountCheck::SameMount, later);
        assert_eq!(board.responsiveness(all(), start, later), Responsiveness::Responsive);
    }

    #[test]
    fn an_ejected_replica_that_was_asked_earlier_does_not_end_a_silence() {
        let (mut board, now) = board();
        let alone = ReplicaSet::EMPTY.with(id(0));
        board.eject(id(0), HealthReason::Stalled, now);
        let now = now + MAX_EJECTION;
        assert!(board.due_mount_checks(now).contains(id(0)), "it is asked");
        let (start, later) = (now + Duration::from_millis(1), now + Duration::from_millis(2));
        board.mount_checked(id(0), MountCheck::SameMount, later);
        assert_eq!(board.responsiveness(alone, now, later), Responsiveness::Responsive);
        assert_eq!(board.responsiveness(alone, start, later), Responsiveness::Unknown);
    }

    #[test]
    fn an_error_from_before_a_silence_does_not_end_it() {
        let (mut board, now) = board();
        let alone = ReplicaSet::EMPTY.with(id(0));
        let _ = board.responsiveness(alone, now, now);
        let _ = board.due_mount_checks(now);
        board.mount_checked(id(0), MountCheck::Failed, now);
        let later = now + Duration::from_millis(1);
        assert_eq!(board.responsiveness(alone, now, later), Responsiveness::Responsive);
        assert_eq!(board.responsiveness(alone, later, later), Responsiveness::Unknown);
    }

    #[test]
    fn failed_or_absent_replicas_do_not_end_a_silence() {
        let (mut board, now) = board();
        let start = now;
        board.mount_gone(id(0), now);
        let _ = board.responsiveness(all(), start, now);
        let _ = board.due_mount_checks(now);
        let now = now + ROOT_TIMEOUT;
        board.mount_checked(id(1), MountCheck::Failed, now);
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unresponsive);
        board.mount_checked(id(2), MountCheck::Failed, now);
        assert_eq!(
            board.responsiveness(all(), start, now),
            Responsiveness::Responsive,
            "errors are answers"
        );
    }

    #[test]
    fn a_root_that_cannot_be_asked_is_silent() {
        let (mut board, mut now) = board();
        let start = now;
        for _ in 0..20 {
            let _ = board.responsiveness(all(), start, now);
            for replica in board.due_mount_checks(now).iter() {
                board.mount_checked(replica, MountCheck::Inconclusive, now);
            }
            now += ROOT_TIMEOUT / 10;
        }
        assert_eq!(board.responsiveness(all(), start, now), Responsiveness::Unresponsive);
    }

    #[test]
    fn an_ambiguous_error_detects_a_lost_mount() {
        let (mut board, now) = board();
        board.record_ambiguous_error(id(0), now);
        let _ = board.due_mount_checks(now);
        board.mount_checked(id(0), MountCheck::MountGone, now);
        assert_eq!(board.state(id(0)), HealthState::Absent);
    }

    #[test]
    fn all_replicas_are_used_if_all_mounts_are_gone() {
        let (mut board, now) = board();
        for replica in 0..3 {
            board.mount_gone(id(replica), now);
        }
        assert_eq!(board.usable(now), board.health.all());
    }

    #[test]
    fn a_very_slow_replica_is_ejected_until_it_proves_its_speed() {
        let (mut board, now) = board();
        let rates: ReplicaMap<_> = [Some(100.0), Some(1.0), Some(90.0)].into_iter().collect();
        board.eject_slow(&rates, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy, "not at once");
        let now = now + SLOW_TIMEOUT;
        board.eject_slow(&rates, now);
        assert_eq!(board.state(id(1)), HealthState::Ejected);
        let now = now + MIN_EJECTION;
        assert_eq!(board.due_mount_checks(now), ReplicaSet::EMPTY.with(id(1)));
        board.mount_checked(id(1), MountCheck::SameMount, now);
        board.record_delivery(id(1), now);
        assert_eq!(board.state(id(1)), HealthState::Probing, "a lookup shows no speed");
        board.record_delivery_rate(id(1), 1.0, 100.0, now);
        assert_eq!(board.state(id(1)), HealthState::Ejected);
        let now = now + MAX_EJECTION;
        assert!(!board.due_mount_checks(now).is_empty());
        board.mount_checked(id(1), MountCheck::SameMount, now);
        board.record_delivery_rate(id(1), 50.0, 100.0, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy);
    }

    #[test]
    fn unequal_rates_or_one_slow_sample_do_not_eject() {
        let (mut board, mut now) = board();
        let unlike: ReplicaMap<_> = [Some(160.0), Some(100.0), Some(10.0)].into_iter().collect();
        let slow: ReplicaMap<_> = [Some(160.0), Some(100.0), Some(1.0)].into_iter().collect();
        for round in 0..100 {
            board.eject_slow(if round % 3 == 0 { &slow } else { &unlike }, now);
            now += SLOW_TIMEOUT / 2;
        }
        assert_eq!(board.usable(now), board.health.all());
        assert_eq!(board.state(id(2)), HealthState::Healthy);
    }

    #[test]
    fn without_mount_checks_an_ejection_ends_by_time() {
        let now = Instant::now();
        let names = ["r1", "r2"].map(str::to_owned).into_iter().collect();
        let mut board = HealthBoard::new(names, false, now);
        board.eject(id(0), HealthReason::Stalled, now);
        assert!(!board.usable(now).contains(id(0)));
        assert!(board.usable(now + MIN_EJECTION).contains(id(0)));
        assert_eq!(board.state(id(0)), HealthState::Probing);
    }
}
