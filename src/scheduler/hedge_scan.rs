//! What takes too long: segments that go to a second replica, and replicas that
//! are not asked any more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::health::HealthReason;
use super::hedge::{self, LatenessLimit};
use super::rate::Locality;
use super::{LateAttempt, Scheduler};
use crate::volume::{ReplicaId, ReplicaSet};

/// An attempt of this age counts as hung, if it is also [`HUNG_FACTOR`] its expected
/// completion. A pool counts a thread as stuck after the same time.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// Times the expected completion. A slow replica that still delivers is not that late.
const HUNG_FACTOR: f64 = 8.0;

/// A silent replica that hangs on so many files is ejected at once. Where fewer hang they
/// may be the cause, and the replica's root decides.
const HUNG_FILES_TO_EJECT: usize = 3;

impl<T: Clone> Scheduler<T> {
    /// What is late and may be asked of another replica as well; each attempt
    /// once. Call it every few dozen milliseconds while anything is in flight.
    /// What somebody waits for, as `is_awaited` says, may be so sooner.
    pub fn find_late(
        &mut self,
        now: Instant,
        is_awaited: impl Fn(&T) -> bool,
        out: &mut Vec<LateAttempt<T>>,
    ) {
        let mut beaten = BTreeSet::new();
        let mut stalled = ReplicaSet::EMPTY;
        let mut silent_ones = ReplicaSet::EMPTY;
        let mut passed = ReplicaSet::EMPTY;
        let mut slow = ReplicaSet::EMPTY;
        let mut only_holders = ReplicaSet::EMPTY;
        self.stuck_replicas = ReplicaSet::EMPTY;
        let suspect = self.health.suspects();
        self.write_off_hung(now);
        for (&id, attempt) in &mut self.attempts {
            let age = now.saturating_duration_since(attempt.read.at);
            let expired = age >= self.policy.attempt_deadline;
            if !attempt.has_other_copies {
                only_holders = only_holders.with(attempt.replica);
            }
            let watch = LatenessLimit {
                late_factor: self.lateness[attempt.replica].late_factor(),
                is_suspect: suspect.contains(attempt.replica),
            };
            let late = expired || hedge::is_late(age, attempt.expected);
            let soon = !late
                && !attempt.other_holders.is_empty()
                && !attempt.is_hedge
                && !attempt.is_hedged
                && hedge::is_late_for_reader(age, attempt.expected, watch)
                && is_awaited(&attempt.item);
            let raced = attempt.hedge_after.is_some_and(|after| age >= after);
            if !late && !soon && !raced {
                continue;
            }
            let delivered_since = |id: ReplicaId| {
                self.estimates[id].last_delivery().is_some_and(|last| last > attempt.read.at)
            };
            if expired && !delivered_since(attempt.replica) {
                self.stuck_replicas = self.stuck_replicas.with(attempt.replica);
            }
            let silent = !delivered_since(attempt.replica)
                && attempt.other_candidates.iter().any(delivered_since);
            // Where the replica's node does not hold the segment, the one that
            // does may be to blame. A deadline counts once; silence for as long
            // as it lasts.
            if silent {
                silent_ones = silent_ones.with(attempt.replica);
            }
            if late && attempt.read.locality == Locality::Local {
                slow = slow.with(attempt.replica);
                if expired && !attempt.is_hedged && !attempt.is_hedge {
                    passed = passed.with(attempt.replica);
                } else if silent && attempt.is_delivered_elsewhere {
                    beaten.insert((attempt.replica.index(), attempt.segment_key.0));
                    stalled = stalled.with(attempt.replica);
                } else if silent {
                    stalled = stalled.with(attempt.replica);
                }
            }
            if attempt.is_hedged || attempt.other_candidates.is_empty() {
                continue;
            }
            // What made two replicas late may be what is behind both; a third
            // would make it worse. But nobody waits for two that hang.
            let bytes = attempt.read.bytes;
            let funds = self.hedges.clone();
            let may = match (attempt.is_hedge, expired) {
                _ if raced => true,
                _ if soon => self.hedges.spend_low_priority(bytes),
                (false, true) => true,
                (false, false) if silent => self.hedges.overdraw(bytes),
                // A replica that is slow and at work would get the same read
                // twice, were there no other copy.
                (false, false) => {
                    (attempt.has_other_copies || !delivered_since(attempt.replica))
                        && self.hedges.spend(bytes)
                }
                (true, true) => silent || attempt.has_other_copies,
                (true, false) => false,
            };
            if !may {
                continue;
            }
            attempt.is_hedged = true;
            // A proxy may be no quicker than what is late.
            let candidates = if soon { attempt.other_holders } else { attempt.other_candidates };
            out.push(LateAttempt {
                item: attempt.item.clone(),
                replica: attempt.replica,
                candidates,
                attempt: id,
                price: self.hedges.spent_since(&funds),
            });
        }
        for replica in slow.iter() {
            self.health.record_late(replica, now);
        }
        for replica in stalled.iter() {
            let files = beaten.iter().filter(|(late, _)| *late == replica.index()).count();
            match files >= HUNG_FILES_TO_EJECT {
                true => self.health.eject(replica, HealthReason::Stalled, now),
                false => self.health.eject_unless_root_ok(replica, HealthReason::Stalled, now),
            }
        }
        for replica in passed.iter() {
            self.health.eject_unless_root_ok(replica, HealthReason::Deadline, now);
        }
        // Where no other replica has a copy, nothing is gained by ejecting the slow one. A file
        // that hangs on a replica is no measure of its speed.
        let rates = self.estimates.map(|id, estimate| {
            let is_compared = !only_holders.contains(id) && !silent_ones.contains(id);
            is_compared.then(|| estimate.recent_local_rate(now)).flatten()
        });
        self.health.eject_slow(&rates, now);
    }

    /// Takes hung attempts out of their replica's in-flight limit, at most as many as the
    /// limit allows: the pool replaces as many threads.
    fn write_off_hung(&mut self, now: Instant) {
        let mut left = self.estimates.map(|_, estimate| estimate.max_reads());
        let mut hanging = BTreeSet::new();
        self.hung_files.clear();
        for attempt in self.attempts.values_mut() {
            let places = &mut left[attempt.replica];
            let age = now.saturating_duration_since(attempt.read.at);
            let hangs = age >= HUNG_AFTER.max(attempt.expected.mul_f64(HUNG_FACTOR));
            let (file, replica) = (attempt.segment_key.0, attempt.replica);
            // From the second on.
            // A call to a mount that has gone says nothing of the mount in its place.
            let is_old = self.health.was_ejected_since(replica, attempt.read.at);
            if hangs && !is_old && !hanging.insert((file, replica.index())) {
                let hung = self.hung_files.entry(file).or_insert(ReplicaSet::EMPTY);
                *hung = hung.with(replica);
            }
            if attempt.is_written_off || hangs && *places > 0 {
                *places = places.saturating_sub(1);
                if !attempt.is_written_off {
                    attempt.is_written_off = true;
                    self.estimates[attempt.replica].remove_unmeasured(now, attempt.read);
                }
            }
        }
    }

    /// Attempts that hang, with their replicas.
    pub fn hung_attempts(&self) -> impl Iterator<Item = (&T, ReplicaId)> {
        let hung = self.attempts.values().filter(|attempt| attempt.is_written_off);
        hung.map(|attempt| (&attempt.item, attempt.replica))
    }

    /// What was late could not be asked for a second time now: it is late again the
    /// next time.
    pub fn cancel_hedge(&mut self, late: &LateAttempt<T>) {
        if let Some(attempt) = self.attempts.get_mut(&late.attempt) {
            attempt.is_hedged = false;
            self.hedges.refund(late.price);
        }
    }
}
