//! Probes replicas that are not asked otherwise.
//!
//! A replica that was slow gets a segment at intervals, because its estimate becomes old. If
//! possible, the probe is hedged, so that no reader waits much longer for it.

use std::time::{Duration, Instant};

use super::rate::Locality;
use super::{AttemptId, Dispatch, Scheduler, SegmentRequest, estimate};
use crate::replicas::health::HealthState;
use crate::replicas::health_board::HealthBoard;
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// A replica that was not asked for this long is probed with a real segment. That is often enough
/// to use a recovered replica again within seconds. It is seldom enough that a replica a hundred
/// times too slow costs only an occasional hedge.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(2);

/// The same for a segment that its node does not hold, if it has read such a segment before: other
/// replicas normally read these.
const PROBE_REMOTE_AFTER: Duration = Duration::from_secs(15);

/// The least interval between two probes, however many replicas there are. Otherwise 64 replicas
/// whose nodes hold nothing of the data would each fetch a segment from the nodes that do.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(100);

impl<T: Clone> Scheduler<T> {
    /// Sends the least urgent waiting segment to a replica that has not been asked for a while: its
    /// estimate is old. A hedge is armed in case it is still slow.
    pub(super) fn probe_idle_replica(
        &mut self,
        health: &mut HealthBoard,
        usable: ReplicaSet,
        now: Instant,
        out: &mut Vec<Dispatch<T>>,
    ) {
        if self.has_recent_probe(now) {
            return;
        }
        for replica in usable.iter() {
            let Some(since) = self.estimates[replica].idle_since() else { continue };
            let idle = now.saturating_duration_since(since);
            let Some((_, want)) = self.queue.last_key_value() else { return };
            let is_eligible = want.eligible_replicas(usable, &self.hung_files).contains(replica);
            let estimate = &self.estimates[replica];
            let patience = match want.locality(replica) {
                Locality::Remote if estimate.is_measured().remote => PROBE_REMOTE_AFTER,
                Locality::Remote | Locality::Local => PROBE_AFTER,
            };
            if !is_eligible || idle < patience {
                continue;
            }
            // A replica on trial must be able to prove its rate, with any segment.
            let is_on_trial = health.state(replica) == HealthState::Probing;
            if !is_on_trial && !self.may_borrow(want, replica, now) {
                continue;
            }
            let Some((_, want)) = self.queue.pop_last() else { return };
            let loads = want.candidates.iter().map(|id| (id, self.estimates[id].load(now)));
            let expected = loads
                .map(|(id, load)| {
                    load.completion(want.locality(id), load.in_flight_work, want.bytes)
                })
                .fold(f64::INFINITY, f64::min);
            let dispatch =
                self.start_attempt(want, replica, Duration::from_secs_f64(expected), now);
            self.arm_probe_hedge(dispatch.attempt, health, now);
            out.push(dispatch);
            self.last_probe = Some(now);
            return;
        }
    }

    /// Whether `replica` may read a segment, also if only another one's node serves it.
    fn may_borrow(&self, want: &SegmentRequest<T>, replica: ReplicaId, now: Instant) -> bool {
        let home = want.home(self.policy.segment).filter(|home| *home != replica);
        home.is_none_or(|home| {
            let load = self.estimates[home].load(now);
            let seen = self.home_view(&load, self.best_rate_except(None, now));
            self.lending.has_room(self.lending.limit(home, seen, now))
        })
    }

    fn has_recent_probe(&self, now: Instant) -> bool {
        self.last_probe.is_some_and(|at| now.saturating_duration_since(at) < MIN_PROBE_INTERVAL)
    }

    /// The same if the only waiting segment is one that a reader waits for. A reader of single
    /// parts in sequence never has a second segment in the queue. A replica whose first read
    /// happened to be slow would then never be asked again. If it is still slow, the segment is
    /// hedged after twice the best replica's expected completion. True if a segment was sent.
    pub(super) fn probe_with_lone_segment(
        &mut self,
        usable: ReplicaSet,
        loads: &ReplicaMap<estimate::ReplicaLoad>,
        now: Instant,
        out: &mut Vec<Dispatch<T>>,
    ) -> bool {
        let Some((id, want)) = self.queue.first_key_value() else { return false };
        let is_alone = self.queue.len() == 1 && !want.is_readahead && !want.is_hedge;
        if !is_alone || self.has_recent_probe(now) {
            return false;
        }
        let completion = |replica: ReplicaId| {
            let load = &loads[replica];
            load.completion(want.locality(replica), load.in_flight_work, want.bytes)
        };
        // The best may be a remote one, which is why the only holder is not asked.
        let choice = want.eligible_replicas(usable, &self.hung_files);
        let sooner = |a: &ReplicaId, b: &ReplicaId| completion(*a).total_cmp(&completion(*b));
        let Some(best) = choice.iter().min_by(sooner) else { return false };
        let is_stale = |replica: &ReplicaId| {
            let since = self.estimates[*replica].idle_since();
            let idle = since.map(|since| now.saturating_duration_since(since));
            *replica != best && idle.is_some_and(|idle| idle >= PROBE_AFTER)
        };
        let holders = choice.and(want.holders.local);
        let Some(replica) = holders.iter().find(is_stale) else { return false };
        let expected = Duration::from_secs_f64(completion(replica));
        let race_after = 2 * Duration::from_secs_f64(completion(best));
        let id = *id;
        if self.hedges.spend_low_priority(want.bytes).is_none() {
            return false;
        }
        let Some(want) = self.queue.remove(&id) else { return false };
        let dispatch = self.start_attempt(want, replica, expected, now);
        if let Some(attempt) = self.attempts.get_mut(&dispatch.attempt) {
            attempt.hedge_after = Some(race_after);
        }
        out.push(dispatch);
        self.last_probe = Some(now);
        true
    }

    /// Arms a hedge for a probe at twice the expected completion of the best other replica, if the
    /// budget can pay for it.
    pub(super) fn arm_probe_hedge(
        &mut self,
        attempt: AttemptId,
        health: &mut HealthBoard,
        now: Instant,
    ) {
        let Some(sent) = self.attempts.get(&attempt) else { return };
        let others = sent.other_candidates;
        let bytes = sent.read.bytes;
        let race_after = self.reserve_probe_hedge(others, bytes, health, now);
        if let Some(sent) = self.attempts.get_mut(&attempt) {
            sent.hedge_after = race_after;
        }
    }

    /// The time after which one of `others` is asked for `bytes` as well; pays for it.
    fn reserve_probe_hedge(
        &self,
        others: ReplicaSet,
        bytes: u64,
        health: &mut HealthBoard,
        now: Instant,
    ) -> Option<Duration> {
        let usable = health.usable(now);
        let best = others.and(usable).iter().map(|id| {
            let load = self.estimates[id].load(now);
            load.completion(Locality::Local, load.in_flight_work, bytes)
        });
        let best = best.min_by(f64::total_cmp)?;
        let paid = self.hedges.spend_low_priority(bytes);
        paid.map(|_| 2 * Duration::from_secs_f64(best))
    }
}
