//! What takes too long: segments that go to a second replica, and replicas that
//! are not asked any more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::health::Reason;
use super::hedge::{self, Watch};
use super::pace::Locality;
use super::{Late, Scheduler};
use crate::volume::{ReplicaId, ReplicaSet};

/// An attempt of this age counts as hung, if it is also [`FAR_BEYOND`] its expected
/// completion. A pool counts a thread as stuck after the same time.
const HANGS: Duration = Duration::from_secs(2);

/// Times the expected completion. A slow replica that still delivers is not that late.
const FAR_BEYOND: f64 = 8.0;

/// A silent replica that hangs on so many files is ejected at once. Where fewer hang they
/// may be the cause, and the replica's root decides.
const FILES: usize = 3;

impl<T: Clone> Scheduler<T> {
    /// What is late and may be asked of another replica as well; each attempt
    /// once. Call it every few dozen milliseconds while anything is in flight.
    /// What somebody waits for, as `is_awaited` says, may be so sooner.
    pub fn late(&mut self, now: Instant, is_awaited: impl Fn(&T) -> bool, out: &mut Vec<Late<T>>) {
        let mut beaten = BTreeSet::new();
        let mut stalled = ReplicaSet::EMPTY;
        let mut silent_ones = ReplicaSet::EMPTY;
        let mut passed = ReplicaSet::EMPTY;
        let mut slow = ReplicaSet::EMPTY;
        let mut only_holders = ReplicaSet::EMPTY;
        self.stuck = ReplicaSet::EMPTY;
        let suspect = self.health.suspect();
        self.write_off(now);
        for (&id, attempt) in &mut self.attempts {
            let age = now.saturating_duration_since(attempt.sent.at);
            let expired = age >= self.policy.attempt_deadline;
            if !attempt.has_copies {
                only_holders = only_holders.with(attempt.replica);
            }
            let watch = Watch {
                patience: self.lateness[attempt.replica].patience(),
                is_suspect: suspect.contains(attempt.replica),
            };
            let late = expired || hedge::is_late(age, attempt.expected);
            let soon = !late
                && !attempt.copies.is_empty()
                && !attempt.is_hedge
                && !attempt.hedged
                && hedge::is_late_for_a_reader(age, attempt.expected, watch)
                && is_awaited(&attempt.item);
            let raced = attempt.race_after.is_some_and(|after| age >= after);
            if !late && !soon && !raced {
                continue;
            }
            let delivered_since = |id: ReplicaId| {
                self.estimates[id].last_delivery().is_some_and(|last| last > attempt.sent.at)
            };
            if expired && !delivered_since(attempt.replica) {
                self.stuck = self.stuck.with(attempt.replica);
            }
            let silent =
                !delivered_since(attempt.replica) && attempt.others.iter().any(delivered_since);
            // Where the replica's node does not hold the segment, the one that
            // does may be to blame. A deadline counts once; silence for as long
            // as it lasts.
            if silent {
                silent_ones = silent_ones.with(attempt.replica);
            }
            if late && attempt.sent.locality == Locality::Local {
                slow = slow.with(attempt.replica);
                if expired && !attempt.hedged && !attempt.is_hedge {
                    passed = passed.with(attempt.replica);
                } else if silent && attempt.beaten {
                    beaten.insert((attempt.replica.index(), attempt.segment.0));
                    stalled = stalled.with(attempt.replica);
                } else if silent {
                    stalled = stalled.with(attempt.replica);
                }
            }
            if attempt.hedged || attempt.others.is_empty() {
                continue;
            }
            // What made two replicas late may be what is behind both; a third
            // would make it worse. But nobody waits for two that hang.
            let bytes = attempt.sent.bytes;
            let funds = self.hedges.clone();
            let may = match (attempt.is_hedge, expired) {
                _ if raced => true,
                _ if soon => self.hedges.spend_spare(bytes),
                (false, true) => true,
                (false, false) if silent => self.hedges.overdraw(bytes),
                // A replica that is slow and at work would get the same read
                // twice, were there no other copy.
                (false, false) => {
                    (attempt.has_copies || !delivered_since(attempt.replica))
                        && self.hedges.spend(bytes)
                }
                (true, true) => silent || attempt.has_copies,
                (true, false) => false,
            };
            if !may {
                continue;
            }
            attempt.hedged = true;
            // A proxy may be no quicker than what is late.
            let candidates = if soon { attempt.copies } else { attempt.others };
            out.push(Late {
                item: attempt.item.clone(),
                replica: attempt.replica,
                candidates,
                attempt: id,
                price: self.hedges.less_than(&funds),
            });
        }
        for replica in slow.iter() {
            self.health.late(replica, now);
        }
        for replica in stalled.iter() {
            let files = beaten.iter().filter(|(late, _)| *late == replica.index()).count();
            match files >= FILES {
                true => self.health.eject(replica, Reason::Stalled, now),
                false => self.health.accused(replica, Reason::Stalled, now),
            }
        }
        for replica in passed.iter() {
            self.health.accused(replica, Reason::Deadline, now);
        }
        // Where no other replica has a copy, nothing is gained by ejecting the slow one. A file
        // that hangs on a replica is no measure of its speed.
        let rates = self.estimates.map(|id, estimate| {
            let is_compared = !only_holders.contains(id) && !silent_ones.contains(id);
            is_compared.then(|| estimate.local_rate(now)).flatten()
        });
        self.health.compare(&rates, now);
    }

    /// Takes hung attempts out of their replica's in-flight limit, at most as many as the
    /// limit allows: the pool replaces as many threads.
    fn write_off(&mut self, now: Instant) {
        let mut left = self.estimates.map(|_, estimate| estimate.most_reads());
        let mut hanging = BTreeSet::new();
        self.hung.clear();
        for attempt in self.attempts.values_mut() {
            let places = &mut left[attempt.replica];
            let age = now.saturating_duration_since(attempt.sent.at);
            let hangs = age >= HANGS.max(attempt.expected.mul_f64(FAR_BEYOND));
            let (file, replica) = (attempt.segment.0, attempt.replica);
            // From the second on.
            // A call to a mount that has gone says nothing of the mount in its place.
            let is_old = self.health.was_ejected_since(replica, attempt.sent.at);
            if hangs && !is_old && !hanging.insert((file, replica.index())) {
                let hung = self.hung.entry(file).or_insert(ReplicaSet::EMPTY);
                *hung = hung.with(replica);
            }
            if attempt.written_off || hangs && *places > 0 {
                *places = places.saturating_sub(1);
                if !attempt.written_off {
                    attempt.written_off = true;
                    self.estimates[attempt.replica].dropped(now, attempt.sent);
                }
            }
        }
    }

    /// Attempts that hang, with their replicas.
    pub fn hung(&self) -> impl Iterator<Item = (&T, ReplicaId)> {
        let hung = self.attempts.values().filter(|attempt| attempt.written_off);
        hung.map(|attempt| (&attempt.item, attempt.replica))
    }

    /// What was late could not be asked for a second time now: it is late again the
    /// next time.
    pub fn not_hedged(&mut self, late: &Late<T>) {
        if let Some(attempt) = self.attempts.get_mut(&late.attempt) {
            attempt.hedged = false;
            self.hedges.give_back(late.price);
        }
    }
}
