//! Finds late segments to hedge, and replicas to eject.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::estimate::ReplicaEstimate;
use super::rate::Locality;
use super::{Attempt, AttemptOutcome, LateAttempt, Scheduler, SegmentNeed};
use crate::replicas::health::HealthReason;
use crate::replicas::health_board::HealthBoard;
use crate::replicas::hedge_budget::{HedgeBudget, HedgePrice};
use crate::replicas::lateness::{self, LatenessLimit};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// An attempt of this age counts as hung, if it is also [`HUNG_FACTOR`] times its expected
/// completion. A pool counts a thread as stuck after the same time.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// Multiple of the expected completion. A slow replica that still delivers is not that late.
const HUNG_FACTOR: f64 = 8.0;

/// A silent replica that hangs on this many files is ejected at once. With fewer, the files may be
/// the cause, and the replica's root decides.
const HUNG_FILES_TO_EJECT: usize = 3;

/// The ways in which an attempt is late.
#[derive(Clone, Copy)]
struct Lateness {
    /// Whether it has passed `attempt_deadline`.
    is_expired: bool,
    /// Whether it is late by any measure.
    is_late: bool,
    /// Whether it is late only for a waiting reader, and another replica holds a copy.
    is_late_for_reader: bool,
    /// Whether it is a probe whose hedge is due and already paid for.
    is_prepaid: bool,
}

/// Deliveries since an attempt began, by its replica and by the others.
#[derive(Clone, Copy)]
struct Deliveries {
    /// Whether its replica has delivered.
    by_replica: bool,
    /// Whether another one has, and its replica has not.
    by_others: bool,
}

impl Deliveries {
    /// Whether the replica is silent while others deliver.
    fn is_replica_silent(self) -> bool {
        !self.by_replica && self.by_others
    }
}

/// The replicas that one scan of the attempts found late.
#[derive(Default)]
struct LateReplicas {
    /// Replicas with attempts for which no other replica has a copy.
    only_holders: ReplicaSet,
    /// Replicas with an attempt past its deadline and no delivery since it began.
    stuck: ReplicaSet,
    /// Replicas without a delivery since an attempt began, while others deliver.
    silent: ReplicaSet,
    /// Replicas that are late with a segment that their node holds.
    late: ReplicaSet,
    /// Replicas with such an attempt that has just passed its deadline.
    expired: ReplicaSet,
    /// Replicas that are late with such a segment and silent.
    stalled: ReplicaSet,
    /// Replicas, by index, with the files for which another replica has delivered the segment that
    /// they are silent about.
    beaten: BTreeSet<(usize, u64)>,
}

impl<T> Attempt<T> {
    /// `None` while it is not late.
    fn lateness(
        &self,
        now: Instant,
        deadline: Duration,
        limit: LatenessLimit,
        need: impl Fn(&T) -> SegmentNeed,
    ) -> Option<Lateness> {
        let age = now.saturating_duration_since(self.read.at);
        let is_expired = age >= deadline;
        let is_late = is_expired || lateness::is_late(age, self.expected);
        let is_late_for_reader = !is_late
            && !self.other_holders.is_empty()
            && !self.is_hedge
            && !self.is_hedged
            && lateness::is_late_for_reader(age, self.expected, limit)
            && need(&self.item).is_awaited;
        let is_prepaid = self.hedge_after.is_some_and(|after| age >= after);
        (is_late || is_late_for_reader || is_prepaid).then_some(Lateness {
            is_expired,
            is_late,
            is_late_for_reader,
            is_prepaid,
        })
    }

    fn deliveries(&self, estimates: &ReplicaMap<ReplicaEstimate>) -> Deliveries {
        let delivered_since =
            |id: ReplicaId| estimates[id].last_delivery().is_some_and(|last| last > self.read.at);
        let by_replica = delivered_since(self.replica);
        Deliveries {
            by_replica,
            by_others: !by_replica && estimates.all().iter().any(delivered_since),
        }
    }

    /// Pays for a hedge from `hedges`; `None` if there must be none.
    ///
    /// If two replicas are late, the cause may be a backend that both share, and a third read would
    /// make it worse. So a hedge is hedged again only past the attempt deadline, and only if its
    /// replica is silent or there are other copies.
    fn pay_for_hedge(
        &self,
        lateness: Lateness,
        deliveries: Deliveries,
        hedges: &HedgeBudget,
    ) -> Option<HedgePrice> {
        let bytes = self.read.bytes;
        let is_silent = deliveries.is_replica_silent();
        match (self.is_hedge, lateness.is_expired) {
            _ if lateness.is_prepaid => Some(HedgePrice::NONE),
            _ if lateness.is_late_for_reader => hedges.spend_low_priority(bytes),
            (false, true) => Some(HedgePrice::NONE),
            (false, false) if is_silent => hedges.overdraw(bytes),
            // Without another copy, a slow but working replica would get the same read twice.
            (false, false) if self.has_other_copies || !deliveries.by_replica => {
                hedges.spend(bytes)
            }
            (true, true) if is_silent || self.has_other_copies => Some(HedgePrice::NONE),
            (false, false) | (true, _) => None,
        }
    }
}

impl LateReplicas {
    fn record<T>(&mut self, attempt: &Attempt<T>, lateness: Lateness, deliveries: Deliveries) {
        let replica = attempt.replica;
        let is_silent = deliveries.is_replica_silent();
        if lateness.is_expired && !deliveries.by_replica {
            self.stuck = self.stuck.with(replica);
        }
        // If the replica's node does not hold the segment, the node that does may be to blame. A
        // deadline counts once; silence counts as long as it lasts.
        if is_silent {
            self.silent = self.silent.with(replica);
        }
        if !lateness.is_late || attempt.read.locality != Locality::Local {
            return;
        }
        self.late = self.late.with(replica);
        if lateness.is_expired && !attempt.is_hedged && !attempt.is_hedge {
            self.expired = self.expired.with(replica);
        } else if is_silent {
            self.stalled = self.stalled.with(replica);
            if attempt.is_delivered_elsewhere {
                self.beaten.insert((replica.index(), attempt.segment_key.0));
            }
        }
    }

    /// The number of files for which others have delivered a segment that `replica` is silent
    /// about.
    fn beaten_files(&self, replica: ReplicaId) -> usize {
        self.beaten.iter().filter(|(late, _)| *late == replica.index()).count()
    }
}

impl<T: Clone> Scheduler<T> {
    /// Finds attempts that are late and may be hedged; each attempt once. Call it every few dozen
    /// milliseconds while anything is in flight. A segment that a reader waits for may be late
    /// sooner. The alternatives are the present ones: since an attempt began, replicas may have
    /// failed, and others may work again.
    pub fn find_late(
        &mut self,
        health: &mut HealthBoard,
        now: Instant,
        need: impl Fn(&T) -> SegmentNeed,
        out: &mut Vec<LateAttempt<T>>,
    ) {
        let suspects = health.suspects();
        self.write_off_hung(health, now);
        let mut replicas = LateReplicas::default();
        for (&id, attempt) in &mut self.attempts {
            if !attempt.has_other_copies {
                replicas.only_holders = replicas.only_holders.with(attempt.replica);
            }
            let limit = LatenessLimit {
                late_factor: self.lateness[attempt.replica].late_factor(),
                is_suspect: suspects.contains(attempt.replica),
            };
            let deadline = self.policy.attempt_deadline;
            let Some(lateness) = attempt.lateness(now, deadline, limit, &need) else {
                continue;
            };
            let deliveries = attempt.deliveries(&self.estimates);
            replicas.record(attempt, lateness, deliveries);
            if attempt.is_hedged {
                continue;
            }
            // A replica that must fetch the chunk from another node may be no quicker than the late
            // one.
            let itself = ReplicaSet::EMPTY.with(attempt.replica);
            let alternatives = need(&attempt.item).alternatives.minus(itself);
            let candidates = match lateness.is_late_for_reader {
                true => alternatives.and(attempt.other_holders),
                false => alternatives,
            };
            if candidates.is_empty() {
                continue;
            }
            let Some(price) = attempt.pay_for_hedge(lateness, deliveries, &self.hedges) else {
                continue;
            };
            attempt.is_hedged = true;
            out.push(LateAttempt {
                item: attempt.item.clone(),
                replica: attempt.replica,
                candidates,
                since: attempt.read.at,
                attempt: id,
                price,
            });
        }
        self.record_late_replicas(&replicas, health, now);
    }

    fn record_late_replicas(
        &mut self,
        found: &LateReplicas,
        health: &mut HealthBoard,
        now: Instant,
    ) {
        self.stuck_replicas = found.stuck;
        for replica in found.late.iter() {
            health.record_late(replica, now);
        }
        for replica in found.stalled.iter() {
            match found.beaten_files(replica) >= HUNG_FILES_TO_EJECT {
                true => health.eject(replica, HealthReason::Stalled, now),
                false => health.eject_unless_root_ok(replica, HealthReason::Stalled, now),
            }
        }
        for replica in found.expired.iter() {
            health.eject_unless_root_ok(replica, HealthReason::Deadline, now);
        }
        // If no other replica has a copy, ejecting the slow one gains nothing. A file that hangs on
        // a replica is no measure of its speed.
        let rates = self.estimates.map(|id, estimate| {
            let is_compared = !found.only_holders.contains(id) && !found.silent.contains(id);
            is_compared.then(|| estimate.recent_local_rate(now)).flatten()
        });
        health.eject_slow(&rates, now);
    }

    /// Updates the other attempts of a segment when one of them has ended.
    pub(super) fn update_other_attempts(&mut self, ended: &Attempt<T>, outcome: AttemptOutcome) {
        if !ended.is_hedge && !ended.is_hedged {
            return;
        }
        let has_delivered = matches!(outcome, AttemptOutcome::Delivered(_));
        let same = self.attempts.values_mut().filter(|a| a.segment_key == ended.segment_key);
        for other in same {
            other.is_delivered_elsewhere |= has_delivered;
            // A failed hedge leaves the late attempt to be hedged once more.
            other.is_hedged &= has_delivered || !ended.is_hedge;
        }
    }

    /// Removes hung attempts from their replica's in-flight limit, at most as many as that limit:
    /// the pool replaces as many threads.
    fn write_off_hung(&mut self, health: &HealthBoard, now: Instant) {
        let mut left = self.estimates.map(|_, estimate| estimate.max_reads());
        let mut hanging = BTreeSet::new();
        self.hung_files.clear();
        for attempt in self.attempts.values_mut() {
            let places = &mut left[attempt.replica];
            let age = now.saturating_duration_since(attempt.read.at);
            let hangs = age >= HUNG_AFTER.max(attempt.expected.mul_f64(HUNG_FACTOR));
            let file = attempt.segment_key.0;
            let replica = attempt.replica;
            // A file counts as hung from its second hung attempt on. A call to a mount that is gone
            // says nothing about the mount in its place.
            let is_old = health.was_ejected_since(replica, attempt.read.at);
            if hangs && !is_old && !hanging.insert((file, replica.index())) {
                let hung = self.hung_files.entry(file).or_insert(ReplicaSet::EMPTY);
                *hung = hung.with(replica);
            }
            if attempt.in_flight.is_none() || hangs && *places > 0 {
                *places = places.saturating_sub(1);
                if let Some(read) = attempt.home_read.take() {
                    self.lending.record_end(read, 0, now);
                }
                if let Some(read) = attempt.in_flight.take() {
                    self.estimates[attempt.replica].remove_unmeasured(now, read);
                }
            }
        }
    }

    /// The hung attempts, with their replicas.
    pub fn hung_attempts(&self) -> impl Iterator<Item = (&T, ReplicaId)> {
        let hung = self.attempts.values().filter(|attempt| attempt.in_flight.is_none());
        hung.map(|attempt| (&attempt.item, attempt.replica))
    }

    /// Cancels a hedge that could not be made now: the next scan finds the attempt late again.
    pub fn cancel_hedge(&mut self, late: &LateAttempt<T>) {
        self.hedges.refund(late.price);
        if let Some(attempt) = self.attempts.get_mut(&late.attempt) {
            attempt.is_hedged = false;
        }
    }
}
