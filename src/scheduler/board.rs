//! The health of all replicas together: whom to ask, whom to have prove itself.
//!
//! [`super::health`] says what follows from what happens to one replica. Here is
//! what takes several: the last one is never ejected, and one is slow only in
//! comparison with the others.
//!
//! Pure: proofs are asked for by whoever owns this, who looks at
//! [`HealthBoard::to_prove`] now and then and reports by [`HealthBoard::proved`].

use std::time::{Duration, Instant};

use super::health::{
    Change, Health, HealthReading, HealthState, Proof, QUICK_ENOUGH, Reason, SLOW,
};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// A replica is slow when it has been so for this long. Longer than a server takes
/// to collect garbage, or a disk to spin up.
const SLOW_FOR: Duration = Duration::from_secs(1);

/// A root that has not answered for so long is silent: what failed is then held
/// against its replica. Longer than a server that is at work takes for a root.
const SILENT: Duration = Duration::from_secs(1);

/// Errors that may be an object's or the replica's: the replica's root is asked, and
/// what it answers decides.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Errors since, which count once the root fails.
    doubts: u32,
    since: Instant,
    /// Whether the root is being asked.
    asked: bool,
    /// Whether it was silent for [`SILENT`]: from then on each error counts.
    is_silent: bool,
    /// Why the replica is ejected at once where its root is not well.
    verdict: Option<Reason>,
}

/// A replica whose root was well is not suspected of hanging for so long.
const ACQUITTED: Duration = Duration::from_secs(1);

/// Whether any of the replicas that could serve something answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// One does, or all that are left fail with errors.
    Broken,
    /// Their roots are being asked.
    Unclear,
    /// None does.
    Total,
}

impl Trial {
    fn new(now: Instant) -> Self {
        Self { doubts: 0, since: now, asked: false, is_silent: false, verdict: None }
    }
}

/// All replicas' health.
#[derive(Clone, Debug)]
pub struct HealthBoard {
    health: ReplicaMap<Health>,
    /// Since when each is slow.
    slow_since: ReplicaMap<Option<Instant>>,
    names: ReplicaMap<String>,
    /// Doubts that the replicas' roots are to settle.
    trials: ReplicaMap<Option<Trial>>,
    /// Whether each failed last by an error, and was neither late nor silent.
    refuses: ReplicaMap<bool>,
    /// When each root was last found well in a trial.
    acquitted: ReplicaMap<Option<Instant>>,
    /// When each root was last found well.
    well: ReplicaMap<Option<Instant>>,
    /// When each root last failed with an error.
    erred: ReplicaMap<Option<Instant>>,
    /// Since when each root has not answered [`HealthBoard::silence`].
    unheard: ReplicaMap<Option<Instant>>,
    /// Whether one that was ejected has to prove itself before it is asked again.
    proofs: bool,
}

impl HealthBoard {
    /// Replicas of these names, all healthy. Without `proofs` time alone ends an
    /// ejection.
    pub fn new(names: ReplicaMap<String>, proofs: bool, now: Instant) -> Self {
        Self {
            health: names.map(|_, _| Health::new(now)),
            slow_since: names.map(|_, _| None),
            trials: names.map(|_, _| None),
            refuses: names.map(|_, _| false),
            acquitted: names.map(|_, _| None),
            well: names.map(|_, _| None),
            erred: names.map(|_, _| None),
            unheard: names.map(|_, _| None),
            names,
            proofs,
        }
    }

    /// A replica's state as of the last event.
    pub fn state(&self, id: ReplicaId) -> HealthState {
        self.health[id].state()
    }

    /// How a replica is.
    pub fn reading(&self, id: ReplicaId, now: Instant) -> HealthReading {
        self.health[id].reading(now)
    }

    /// Replicas that may be asked; all of them where none should be.
    pub fn usable(&mut self, now: Instant) -> ReplicaSet {
        if !self.proofs {
            for id in self.to_prove(now).iter() {
                self.proved(id, Proof::Same, now);
            }
        }
        for id in self.suspect().iter() {
            let change = self.health[id].elapsed(now);
            self.note(id, change);
        }
        let usable = self.set(Health::is_usable);
        if usable.is_empty() { self.health.all() } else { usable }
    }

    /// Whether a replica was ejected after `at`.
    pub fn was_ejected_since(&self, id: ReplicaId, at: Instant) -> bool {
        self.health[id].was_ejected_since(at)
    }

    /// Whether nobody is ejected, absent, or probed, or has its root asked.
    pub fn all_are_in(&self) -> bool {
        let is_settled = |id: ReplicaId| self.trials[id].is_none();
        self.health.iter().all(|(id, health)| health.is_in() && is_settled(id))
    }

    /// Replicas that are watched.
    pub fn suspect(&self) -> ReplicaSet {
        self.set(|health| health.state() == HealthState::Suspect)
    }

    /// Those of them that failed by errors: to ask one costs little time, and only what
    /// it answers shows that few of its answers are errors.
    pub fn refusing(&self) -> ReplicaSet {
        let refusing = self.refuses.iter().filter(|(_, refuses)| **refuses);
        refusing.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id)).and(self.suspect())
    }

    /// Replicas that are to prove that they are the mounts that they were; each is
    /// named once, until its proof has come.
    pub fn to_prove(&mut self, now: Instant) -> ReplicaSet {
        let mut wanted = ReplicaSet::EMPTY;
        for (id, health) in self.health.iter_mut() {
            if health.wants_proof(now) {
                wanted = wanted.with(id);
            }
        }
        for id in self.health.all().iter() {
            let Some(trial) = &mut self.trials[id] else { continue };
            if !trial.asked {
                trial.asked = true;
                wanted = wanted.with(id);
            } else if !trial.is_silent && now.saturating_duration_since(trial.since) >= SILENT {
                trial.is_silent = true;
                let trial = *trial;
                self.held_against(id, trial, now);
            }
        }
        wanted
    }

    /// Something failed, by its fault or for the object's sake. Its root is asked, as
    /// one that is ejected is ([`HealthBoard::to_prove`]): where that is well, the
    /// error was the object's and never counts.
    pub fn doubted(&mut self, id: ReplicaId, now: Instant) {
        if !self.proofs {
            return self.failed(id, now);
        }
        if !self.health[id].is_usable() {
            return;
        }
        let trial = self.trials[id].get_or_insert(Trial::new(now));
        if trial.is_silent {
            return self.failed(id, now);
        }
        trial.doubts = trial.doubts.saturating_add(1);
    }

    /// Something hangs there, by its fault or for the object's sake. Where its root is
    /// not well it is ejected for `reason`.
    pub fn accused(&mut self, id: ReplicaId, reason: Reason, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < ACQUITTED;
        let is_silent = self.trials[id].is_some_and(|trial| trial.is_silent);
        if !self.proofs || is_silent {
            return self.eject(id, reason, now);
        }
        if !self.health[id].is_usable() || self.acquitted[id].is_some_and(is_recent) {
            return;
        }
        self.trials[id].get_or_insert(Trial::new(now)).verdict = Some(reason);
    }

    /// Whether any replica of a set answers. Their roots are asked
    /// ([`HealthBoard::to_prove`]), so ask this only for what has waited for long, and go on
    /// asking.
    ///
    /// Replicas that fail with errors, are absent or are left alone do not count, as long
    /// as there are others.
    pub fn silence(&mut self, of: ReplicaSet, now: Instant) -> Silence {
        let (mut is_any_silent, mut is_any_unclear) = (false, false);
        for id in of.and(self.health.all()).iter() {
            match self.voice(id, now) {
                Some(Silence::Broken) => return Silence::Broken,
                Some(Silence::Unclear) => is_any_unclear = true,
                Some(Silence::Total) => is_any_silent = true,
                None => {}
            }
        }
        match (is_any_unclear, is_any_silent) {
            (true, _) => Silence::Unclear,
            (false, true) => Silence::Total,
            (false, false) => Silence::Broken,
        }
    }

    /// Whether a replica answers; `None` where it does not count.
    fn voice(&mut self, id: ReplicaId, now: Instant) -> Option<Silence> {
        let is_recent = |at: Option<Instant>| {
            at.is_some_and(|at| now.saturating_duration_since(at) < ACQUITTED)
        };
        if self.health[id].is_usable() {
            if is_recent(self.well[id]) {
                return Some(Silence::Broken);
            }
            if is_recent(self.erred[id]) {
                return None;
            }
            self.trials[id].get_or_insert(Trial::new(now));
        } else if self.state(id) == HealthState::Absent || !self.health[id].is_asked() {
            return None;
        }
        let since = *self.unheard[id].get_or_insert(now);
        match now.saturating_duration_since(since) >= SILENT {
            true => Some(Silence::Total),
            false => Some(Silence::Unclear),
        }
    }

    fn held_against(&mut self, id: ReplicaId, trial: Trial, now: Instant) {
        // More than eject make no difference.
        for _ in 0..trial.doubts.min(super::health::OUT) {
            self.failed(id, now);
        }
        if let Some(reason) = trial.verdict {
            self.eject(id, reason, now);
        }
    }

    /// What came of a proof.
    pub fn proved(&mut self, id: ReplicaId, proof: Proof, now: Instant) {
        match proof {
            Proof::Same => self.well[id] = Some(now),
            Proof::Failed => self.erred[id] = Some(now),
            Proof::Gone | Proof::Unclear => {}
        }
        if proof != Proof::Unclear {
            self.unheard[id] = None;
        }
        // One that has been ejected since, and is to prove itself, has.
        if let Some(trial) = self.trials[id].take()
            && !self.health[id].is_asked()
        {
            match proof {
                Proof::Failed if !trial.is_silent => {
                    self.held_against(id, trial, now);
                    self.refuses[id] = true;
                }
                Proof::Gone => self.gone(id, now),
                Proof::Same => self.acquitted[id] = Some(now),
                Proof::Failed | Proof::Unclear => {}
            }
            return;
        }
        let change = self.health[id].proved(proof, now);
        self.note(id, change);
    }

    /// It delivered something that says nothing about its speed.
    pub fn delivered(&mut self, id: ReplicaId, now: Instant) {
        if !self.health[id].is_to_show_its_speed() {
            let change = self.health[id].delivered(now);
            self.note(id, change);
        }
    }

    /// It delivered so many bytes a second, where the best may deliver `best`.
    pub fn delivered_at(&mut self, id: ReplicaId, rate: f64, best: f64, now: Instant) {
        let is_slow = self.health[id].is_to_show_its_speed() && rate < QUICK_ENOUGH * best;
        let change = match is_slow {
            true => self.health[id].eject(Reason::Slow, false, now),
            false => self.health[id].delivered(now),
        };
        self.note(id, change);
    }

    /// Something failed by its fault.
    pub fn failed(&mut self, id: ReplicaId, now: Instant) {
        let is_last = self.is_last(id);
        self.refuses[id] = false;
        let change = self.health[id].failed(is_last, now);
        self.note(id, change);
    }

    /// Something takes longer than it should.
    pub fn late(&mut self, id: ReplicaId, now: Instant) {
        self.refuses[id] = false;
        let change = self.health[id].late(now);
        self.note(id, change);
    }

    /// It is not to be asked any more, for `reason`, where somebody else is left.
    pub fn eject(&mut self, id: ReplicaId, reason: Reason, now: Instant) {
        let is_last = self.is_last(id);
        let change = self.health[id].eject(reason, is_last, now);
        self.note(id, change);
    }

    /// It has not been in service yet, and is being looked at.
    pub fn expected(&mut self, id: ReplicaId, now: Instant) {
        self.health[id] = Health::expected(now);
    }

    /// Its mount has gone.
    pub fn gone(&mut self, id: ReplicaId, now: Instant) {
        let change = self.health[id].gone(now);
        self.note(id, change);
    }

    /// Something was mounted or unmounted somewhere.
    pub fn mounts_changed(&mut self, now: Instant) {
        for id in self.health.all().iter() {
            self.health[id].mounts_changed(now);
        }
    }

    /// Compares how fast each delivers, bytes a second, where that is known and not
    /// old; call it every few dozen milliseconds while anything is in flight.
    pub fn compare(&mut self, rates: &ReplicaMap<Option<f64>>, now: Instant) {
        let usable = self.set(Health::is_usable);
        let best = |but: ReplicaId| {
            let others = usable.iter().filter(|id| *id != but);
            others.filter_map(|id| rates[id]).fold(0.0, f64::max)
        };
        for id in usable.iter() {
            let is_slow = rates[id].is_some_and(|rate| rate < SLOW * best(id));
            let since = match is_slow {
                true => *self.slow_since[id].get_or_insert(now),
                false => {
                    self.slow_since[id] = None;
                    continue;
                }
            };
            if self.health[id].is_in() && now.saturating_duration_since(since) >= SLOW_FOR {
                self.slow_since[id] = None;
                self.eject(id, Reason::Slow, now);
            }
        }
    }

    fn is_last(&self, id: ReplicaId) -> bool {
        let others = self.set(Health::is_in).minus(ReplicaSet::EMPTY.with(id));
        others.is_empty()
    }

    fn set(&self, of: impl Fn(&Health) -> bool) -> ReplicaSet {
        let mut set = ReplicaSet::EMPTY;
        for (id, health) in self.health.iter() {
            if of(health) {
                set = set.with(id);
            }
        }
        set
    }

    fn note(&self, id: ReplicaId, change: Option<Change>) {
        use HealthState::{Absent, Ejected, Healthy, Suspect};
        let Some(Change { from, to, reason }) = change else { return };
        let replica = &self.names[id];
        match (from, to) {
            (_, Ejected | Absent) => {
                tracing::warn!(%replica, ?from, ?to, ?reason, "health changed");
            }
            // What comes into service for the first time is told by who brings it in.
            (Healthy, Suspect) | (Suspect, Healthy) | (Absent, Healthy) => {
                tracing::debug!(%replica, ?from, ?to, ?reason, "health changed");
            }
            _ => tracing::info!(%replica, ?from, ?to, ?reason, "health changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> (HealthBoard, Instant) {
        let now = Instant::now();
        let names = ["r1", "r2", "r3"].map(str::to_owned).into_iter().collect();
        (HealthBoard::new(names, true, now), now)
    }

    fn id(index: usize) -> ReplicaId {
        ReplicaId::new(index)
    }

    #[test]
    fn whatever_happens_one_is_left() {
        let (mut board, now) = board();
        for replica in [0, 1, 2, 0, 1, 2] {
            for _ in 0..5 {
                board.failed(id(replica), now);
            }
            board.eject(id(replica), Reason::Stalled, now);
            assert!(!board.set(Health::is_in).is_empty());
        }
        assert_eq!(board.state(id(2)), HealthState::Suspect);
    }

    #[test]
    fn a_root_that_is_well_clears_its_replica_of_all_doubts() {
        let (mut board, now) = board();
        for _ in 0..100 {
            board.doubted(id(1), now);
        }
        assert_eq!(board.to_prove(now), ReplicaSet::EMPTY.with(id(1)));
        assert!(board.to_prove(now).is_empty(), "once");
        board.proved(id(1), Proof::Same, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy);
        assert!(board.all_are_in());
    }

    #[test]
    fn doubts_count_where_the_root_fails_or_is_silent() {
        let (mut board, now) = board();
        for _ in 0..3 {
            assert_ne!(board.state(id(1)), HealthState::Ejected);
            board.doubted(id(1), now);
            assert!(!board.to_prove(now).is_empty());
            board.proved(id(1), Proof::Failed, now);
        }
        assert_eq!(board.state(id(1)), HealthState::Ejected, "three in a row");
        board.doubted(id(2), now);
        let _ = board.to_prove(now);
        let now = now + SILENT;
        assert!(!board.to_prove(now).contains(id(2)), "it is being asked");
        assert_eq!(board.state(id(2)), HealthState::Suspect);
        board.doubted(id(2), now);
        board.doubted(id(2), now);
        assert_eq!(board.state(id(2)), HealthState::Ejected);
        // What comes back at last is the answer to the old question.
        board.proved(id(2), Proof::Same, now);
        assert_eq!(board.state(id(2)), HealthState::Ejected);
    }

    fn all() -> ReplicaSet {
        (0..3).fold(ReplicaSet::EMPTY, |all, index| all.with(id(index)))
    }

    #[test]
    fn silence_is_total_while_no_root_answers_and_ends_with_the_first_answer() {
        let (mut board, now) = board();
        assert_eq!(board.silence(all(), now), Silence::Unclear);
        assert_eq!(board.to_prove(now), all(), "all roots are asked");
        let now = now + SILENT;
        assert_eq!(board.silence(all(), now), Silence::Total);
        // However they come out of it, and though not all are asked again at once.
        for replica in 0..3 {
            board.eject(id(replica), Reason::Stalled, now);
        }
        let now = now + super::super::health::LONGEST;
        let _ = board.to_prove(now);
        assert_eq!(board.silence(all(), now), Silence::Total);
        board.proved(id(1), Proof::Same, now);
        assert_eq!(board.silence(all(), now), Silence::Broken);
        let alone = ReplicaSet::EMPTY.with(id(0));
        assert_eq!(board.silence(alone, now), Silence::Total, "the others cannot serve it");
    }

    #[test]
    fn a_replica_whose_root_is_well_breaks_the_silence_until_its_answer_is_old() {
        let (mut board, now) = board();
        let _ = board.silence(all(), now);
        let _ = board.to_prove(now);
        board.proved(id(2), Proof::Same, now);
        let late = now + ACQUITTED - Duration::from_millis(1);
        assert_eq!(board.silence(all(), late), Silence::Broken);
        let now = now + ACQUITTED;
        assert_eq!(board.silence(all(), now), Silence::Unclear);
        assert_eq!(board.to_prove(now), ReplicaSet::EMPTY.with(id(2)), "it is asked again");
    }

    #[test]
    fn replicas_that_fail_or_are_absent_do_not_count_where_another_is_silent() {
        let (mut board, now) = board();
        board.gone(id(0), now);
        let _ = board.silence(all(), now);
        let _ = board.to_prove(now);
        let now = now + SILENT;
        board.proved(id(1), Proof::Failed, now);
        assert_eq!(board.silence(all(), now), Silence::Total);
        board.proved(id(2), Proof::Failed, now);
        assert_eq!(board.silence(all(), now), Silence::Broken, "errors are answers");
    }

    #[test]
    fn a_root_that_cannot_be_asked_is_silent() {
        let (mut board, mut now) = board();
        for _ in 0..20 {
            let _ = board.silence(all(), now);
            for replica in board.to_prove(now).iter() {
                board.proved(replica, Proof::Unclear, now);
            }
            now += SILENT / 10;
        }
        assert_eq!(board.silence(all(), now), Silence::Total);
    }

    #[test]
    fn a_doubt_finds_a_mount_gone() {
        let (mut board, now) = board();
        board.doubted(id(0), now);
        let _ = board.to_prove(now);
        board.proved(id(0), Proof::Gone, now);
        assert_eq!(board.state(id(0)), HealthState::Absent);
    }

    #[test]
    fn all_are_asked_where_all_have_gone() {
        let (mut board, now) = board();
        for replica in 0..3 {
            board.gone(id(replica), now);
        }
        assert_eq!(board.usable(now), board.health.all());
    }

    #[test]
    fn one_that_is_a_hundred_times_slower_is_ejected_and_has_to_show_its_speed() {
        let (mut board, now) = board();
        let rates: ReplicaMap<_> = [Some(100.0), Some(1.0), Some(90.0)].into_iter().collect();
        board.compare(&rates, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy, "not at once");
        let now = now + SLOW_FOR;
        board.compare(&rates, now);
        assert_eq!(board.state(id(1)), HealthState::Ejected);
        let now = now + super::super::health::SHORTEST;
        assert_eq!(board.to_prove(now), ReplicaSet::EMPTY.with(id(1)));
        board.proved(id(1), Proof::Same, now);
        board.delivered(id(1), now);
        assert_eq!(board.state(id(1)), HealthState::Probing, "a lookup shows no speed");
        board.delivered_at(id(1), 1.0, 100.0, now);
        assert_eq!(board.state(id(1)), HealthState::Ejected);
        let now = now + super::super::health::LONGEST;
        assert!(!board.to_prove(now).is_empty());
        board.proved(id(1), Proof::Same, now);
        board.delivered_at(id(1), 50.0, 100.0, now);
        assert_eq!(board.state(id(1)), HealthState::Healthy);
    }

    #[test]
    fn unlike_ones_and_one_slow_moment_are_left_alone() {
        let (mut board, mut now) = board();
        let unlike: ReplicaMap<_> = [Some(160.0), Some(100.0), Some(10.0)].into_iter().collect();
        let slow: ReplicaMap<_> = [Some(160.0), Some(100.0), Some(1.0)].into_iter().collect();
        for round in 0..100 {
            board.compare(if round % 3 == 0 { &slow } else { &unlike }, now);
            now += SLOW_FOR / 2;
        }
        assert_eq!(board.usable(now), board.health.all());
        assert_eq!(board.state(id(2)), HealthState::Healthy);
    }

    #[test]
    fn without_proofs_time_alone_ends_an_ejection() {
        let now = Instant::now();
        let names = ["r1", "r2"].map(str::to_owned).into_iter().collect();
        let mut board = HealthBoard::new(names, false, now);
        board.eject(id(0), Reason::Stalled, now);
        assert!(!board.usable(now).contains(id(0)));
        assert!(board.usable(now + super::super::health::SHORTEST).contains(id(0)));
        assert_eq!(board.state(id(0)), HealthState::Probing);
    }
}
