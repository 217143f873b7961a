//! Assigns every waiting segment to the replica that completes it first.
//!
//! The planner goes through the queue in order of urgency, twice.
//!
//! *Planning.* Each segment goes to the local candidate with the least expected completion
//!
//! > latency + work in flight + work planned for it so far + the segment / rate
//!
//! (to one with a spare copy if none is local, else to any candidate). Planned work counts. So a
//! slow replica gets the segment that it will complete just when it is due. A fast one stays free
//! for segments that are due earlier.
//!
//! *Lending.* A segment moves to a remote candidate that would complete it clearly sooner. The
//! remote candidate's own work counts, even if it comes later in the queue: a window spans chunks
//! so that replicas with different chunks work at once, and they should not fetch each other's.
//! Only for segments that a reader waits for does it not count. [`super::lending`] limits what a
//! replica lends of the chunks that only its own node serves.
//!
//! Then the planned segments of each replica with room are dispatched.
//!
//! Readahead stays on the replica that reads the run before it, until that one is
//! [`RUN_STICKINESS`] segments behind another: a server that reads ahead in a file does worse when
//! two replicas alternate.

use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};

use super::estimate::ReplicaLoad;
use super::lending::LendingLimit;
use super::rate::Locality;

/// How many segments a replica may be behind the best one and still continue a run. The runs are
/// then about twice as long. The limit is lower if the queue has fewer than twice as many segments
/// for each replica: a short window must be spread.
const RUN_STICKINESS: f64 = 2.0;

/// How much sooner a remote candidate must complete a segment than a local one. A smaller
/// difference is noise in the estimates, and a chunk is better read where it is.
pub(super) const MIN_REMOTE_SPEEDUP: f64 = 1.25;

/// Segments lent to a remote candidate at a time, besides those that fill its latency. All of them
/// may come from the one disk that the local candidate reads as well. Then they gain nothing, and
/// the further ahead they are, the later the window reaches the next chunk. With as many in flight
/// as for local ones, one reader of chunks with one copy each lost an eighth (`tests/simulate.rs`).
const REMOTE_SEGMENTS: f64 = 2.0;

/// Readahead is lent only to a replica whose measured rate is at least this share of the home
/// replica's. A replica that fetches it from the home replica's own disk takes turns with the home
/// replica there, so it measures less and gains nothing. Does not apply if a node without a replica
/// holds a copy too.
const MIN_REMOTE_RATE_SHARE: f64 = 0.45;

/// Seconds that an open takes besides the latency of a round trip, for a path lookup and an open
/// file on either side.
pub(super) const OPEN_SECS: f64 = 50e-6;

/// A latency of fewer seconds is no reason to open a small file on another replica. The first read
/// on a replica starts a thread there. If all others then went elsewhere, it would remain the only
/// replica that is measured.
const NEGLIGIBLE_SECS: f64 = 1e-3;

/// The most segments considered in one round. Only the most crowded volumes have a deeper window,
/// and the rest is considered in the next round.
const MAX_PLANNED: usize = 512;

/// A waiting segment, as the choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct WaitingSegment {
    /// Its size in bytes.
    pub bytes: u64,
    /// The replicas that may read it.
    pub candidates: ReplicaSet,
    /// The holders of its chunk.
    pub holders: Holders,
    /// The replica that lends it to others, if only that one's node serves it and it is large.
    pub home: Option<ReplicaId>,
    /// Whether no request waits for it yet.
    pub is_readahead: bool,
    /// Identifies the file that it belongs to.
    pub file_number: u64,
    /// Its first byte in the file.
    pub start: u64,
    /// Replicas that have the file open, if the others would open it for this one segment: half of
    /// the work for a small file. All if that does not matter.
    pub open_on: ReplicaSet,
}

impl WaitingSegment {
    fn locality(&self, id: ReplicaId) -> Locality {
        if self.holders.local.contains(id) { Locality::Local } else { Locality::Remote }
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// A segment to dispatch now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assignment<K> {
    /// The segment.
    pub key: K,
    /// The replica to read from.
    pub replica: ReplicaId,
    /// Whether that replica's node holds it.
    pub locality: Locality,
    /// Seconds until its expected completion.
    pub expected: f64,
}

/// The end of a replica's last segment: the file and the offset.
type RunEnd = Option<(u64, u64)>;

/// Makes the assignments. Keeps the last segment sent to each replica, and memory for the work.
#[derive(Clone, Debug)]
pub struct Assigner<K> {
    run_ends: ReplicaMap<RunEnd>,
    plan: Vec<PlannedSegment<K>>,
    /// Kept to reuse their memory.
    current_loads: ReplicaMap<ReplicaLoad>,
    backlog: ReplicaMap<f64>,
    planned_run_ends: ReplicaMap<RunEnd>,
    moves: RemoteMoves,
}

/// The work that the plan has moved to remote candidates so far.
#[derive(Clone, Debug, Default)]
struct RemoteMoves {
    /// Seconds of its own work that each replica keeps, up to the current segment.
    own_backlog: ReplicaMap<f64>,
    /// Seconds of work that has moved away from each.
    moved_out: ReplicaMap<f64>,
    /// Seconds of work that has moved to each.
    moved_in: ReplicaMap<f64>,
    /// Bytes that each has in flight as a remote candidate, including those that moved.
    in_flight: ReplicaMap<u64>,
    /// Segments in flight that are lent by their only home, including those that moved.
    lent: usize,
}

#[derive(Clone, Copy, Debug)]
struct PlannedSegment<K> {
    key: K,
    demand: WaitingSegment,
    replica: ReplicaId,
    /// Seconds of the replica's work before it, without latency.
    backlog_before: f64,
    work: f64,
}

impl<K: Copy> Assigner<K> {
    /// An assigner for `replicas` replicas.
    pub fn new(replicas: usize) -> Self {
        Self {
            run_ends: ReplicaMap::from_fn(replicas, |_| None),
            plan: Vec::new(),
            current_loads: ReplicaMap::default(),
            backlog: ReplicaMap::default(),
            planned_run_ends: ReplicaMap::default(),
            moves: RemoteMoves::default(),
        }
    }

    /// Records a dispatched segment, whatever decided it.
    pub fn record_sent(&mut self, replica: ReplicaId, stream: u64, end: u64) {
        self.run_ends[replica] = Some((stream, end));
    }

    /// Decides what to dispatch now, appending to `out`. `demands` has the most urgent first.
    pub fn assign(
        &mut self,
        demands: impl ExactSizeIterator<Item = (K, WaitingSegment)>,
        loads: &ReplicaMap<ReplicaLoad>,
        out: &mut Vec<Assignment<K>>,
    ) {
        let mut open = loads.iter().filter(|(_, load)| load.has_room()).count();
        if open == 0 {
            return;
        }
        self.current_loads.clone_from(loads);
        let loyalty = (demands.len() / (2 * loads.len())) as f64;
        self.plan(demands.take(MAX_PLANNED), loyalty.min(RUN_STICKINESS), loads);
        if self.plan.iter().any(|planned| !planned.demand.has_only_local_candidates()) {
            self.move_to_remote(loads);
        }
        for planned in self.plan.drain(..) {
            let load = &mut self.current_loads[planned.replica];
            if !load.has_room() {
                continue;
            }
            let locality = planned.demand.locality(planned.replica);
            let expected = load.completion(locality, load.in_flight_work, planned.demand.bytes);
            out.push(Assignment { key: planned.key, replica: planned.replica, locality, expected });
            load.in_flight += planned.demand.bytes;
            load.in_flight_work += load.cost(locality, planned.demand.bytes);
            load.reads_in_flight += 1;
            if !load.has_room() {
                open -= 1;
                if open == 0 {
                    break;
                }
            }
        }
        self.plan.clear();
    }

    fn plan(
        &mut self,
        demands: impl Iterator<Item = (K, WaitingSegment)>,
        loyalty: f64,
        loads: &ReplicaMap<ReplicaLoad>,
    ) {
        self.plan.clear();
        self.backlog.refill(loads, |load| load.in_flight_work);
        self.planned_run_ends.clone_from(&self.run_ends);
        for (key, demand) in demands {
            let choice = demand.holders.nearest(demand.candidates);
            let Some((mut replica, soonest)) =
                first_to_complete(&demand, choice, loads, &self.backlog)
            else {
                continue;
            };
            if demand.is_readahead
                && let Some(on_run) = self.replica_on_run(&demand, choice)
            {
                // Measured in segments of the best one, so that a slow replica does not profit from
                // its own slowness.
                let slack = loyalty * loads[replica].cost(demand.locality(replica), demand.bytes);
                let locality = demand.locality(on_run);
                let behind = loads[on_run].completion(locality, self.backlog[on_run], demand.bytes);
                if behind <= soonest + slack {
                    replica = on_run;
                }
            }
            let work = loads[replica].cost(demand.locality(replica), demand.bytes);
            let before = self.backlog[replica];
            self.plan.push(PlannedSegment { key, demand, replica, backlog_before: before, work });
            self.backlog[replica] += work;
            self.planned_run_ends[replica] = Some((demand.file_number, demand.end()));
        }
    }

    /// The replica among `choice` that reads the data right before `demand`.
    fn replica_on_run(&self, demand: &WaitingSegment, choice: ReplicaSet) -> Option<ReplicaId> {
        let run = Some((demand.file_number, demand.start));
        choice.iter().find(|id| self.planned_run_ends[*id] == run)
    }

    /// Moves segments to remote candidates that complete them sooner. At first `backlog` has each
    /// replica's whole plan.
    fn move_to_remote(&mut self, loads: &ReplicaMap<ReplicaLoad>) {
        let Self { plan, backlog, moves, .. } = self;
        moves.reset(loads);
        for planned in plan {
            match moves.sooner_remote(planned, backlog, loads) {
                Some(id) => moves.move_segment(planned, id, loads),
                None => moves.own_backlog[planned.replica] += planned.work,
            }
        }
    }
}

impl RemoteMoves {
    fn reset(&mut self, loads: &ReplicaMap<ReplicaLoad>) {
        self.own_backlog.refill(loads, |load| load.in_flight_work);
        self.moved_out.refill(loads, |_| 0.0);
        self.moved_in.refill(loads, |_| 0.0);
        self.in_flight.refill(loads, |load| load.remote_in_flight);
        self.lent = loads.iter().map(|(_, load)| load.lent_reads).sum();
    }

    /// Whether a segment may leave `home`, where it is planned.
    fn may_lend(&self, demand: &WaitingSegment, home: ReplicaId, limit: LendingLimit) -> bool {
        match limit {
            _ if demand.home != Some(home) => true,
            LendingLimit::Unlimited => true,
            LendingLimit::Trial => self.lent == 0,
            LendingLimit::Nothing => false,
        }
    }

    /// The remote candidate that completes a segment first, if that is clearly sooner than the
    /// planned replica would.
    fn sooner_remote<K: Copy>(
        &self,
        planned: &PlannedSegment<K>,
        backlog: &ReplicaMap<f64>,
        loads: &ReplicaMap<ReplicaLoad>,
    ) -> Option<ReplicaId> {
        let PlannedSegment { demand, replica, .. } = *planned;
        let home = &loads[replica];
        if !self.may_lend(&demand, replica, home.lending) {
            return None;
        }
        let locality = demand.locality(replica);
        let kept = planned.backlog_before - self.moved_out[replica];
        let at_home = home.latency[locality] + kept + planned.work + self.moved_in[replica];
        let least_rate = home.rate[locality] * MIN_REMOTE_RATE_SHARE;
        let mut best: Option<(ReplicaId, f64)> = None;
        for id in demand.candidates.minus(demand.holders.local).iter().filter(|id| *id != replica) {
            let backlog = if demand.is_readahead {
                backlog[id] - self.moved_out[id] + self.moved_in[id]
            } else {
                self.own_backlog[id] + self.moved_in[id]
            };
            let load = &loads[id];
            let Some(limit) = max_remote_bytes(&demand, load, least_rate) else { continue };
            if self.in_flight[id] as f64 >= limit {
                continue;
            }
            let completion = load.completion(Locality::Remote, backlog, demand.bytes);
            if completion * MIN_REMOTE_SPEEDUP < at_home
                && best.is_none_or(|(_, least)| completion < least)
            {
                best = Some((id, completion));
            }
        }
        best.map(|(id, _)| id)
    }

    fn move_segment<K>(
        &mut self,
        planned: &mut PlannedSegment<K>,
        to: ReplicaId,
        loads: &ReplicaMap<ReplicaLoad>,
    ) {
        let bytes = planned.demand.bytes;
        self.moved_out[planned.replica] += planned.work;
        self.moved_in[to] += loads[to].cost(Locality::Remote, bytes);
        self.in_flight[to] += bytes;
        self.lent += usize::from(planned.demand.home == Some(planned.replica));
        planned.replica = to;
    }
}

/// The most bytes that a remote candidate may have in flight to be lent `demand`. `None` if its
/// measured rate is below `least_rate` and that matters.
fn max_remote_bytes(demand: &WaitingSegment, load: &ReplicaLoad, least_rate: f64) -> Option<f64> {
    // A single segment shows whether lending pays.
    let segments = match load.is_remote_measured {
        _ if !demand.is_readahead || demand.holders.is_held_elsewhere => REMOTE_SEGMENTS,
        true if load.rate.remote < least_rate => return None,
        _ => 1.0,
    };
    let fills_latency = load.rate.remote * load.latency.remote;
    Some(segments * demand.bytes as f64 + fills_latency)
}

impl WaitingSegment {
    /// Whether no candidate is remote.
    fn has_only_local_candidates(&self) -> bool {
        self.candidates.minus(self.holders.local).is_empty()
    }
}

fn first_to_complete(
    demand: &WaitingSegment,
    choice: ReplicaSet,
    loads: &ReplicaMap<ReplicaLoad>,
    backlog: &ReplicaMap<f64>,
) -> Option<(ReplicaId, f64)> {
    let latency = |id: ReplicaId| loads[id].latency[demand.locality(id)];
    let open = demand.open_on.and(choice);
    // A replica without room is no better than one that must open the file.
    let with_room = open.iter().filter(|id| loads[*id].has_room());
    let ready = match demand.open_on {
        ReplicaSet::ALL => None,
        _ => with_room.map(latency).reduce(f64::min),
    };
    let mut best: Option<(ReplicaId, f64)> = None;
    for id in choice.iter() {
        let mut completion = loads[id].completion(demand.locality(id), backlog[id], demand.bytes);
        if let Some(ready) = ready {
            // An uncertain latency is no reason to leave a replica, nor to prefer it.
            let is_doubtful = loads[id].is_latency_uncertain;
            completion += match (open.contains(id), is_doubtful) {
                (true, true) => -latency(id),
                (true, false) => 0.0,
                (false, true) => ready.min(NEGLIGIBLE_SECS) + ready.max(latency(id)) + OPEN_SECS,
                (false, false) => ready.min(NEGLIGIBLE_SECS) + latency(id) + OPEN_SECS,
            };
        }
        if best.is_none_or(|(_, least)| completion < least) {
            best = Some((id, completion));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::rate::PerLocality;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn load(rate: f64) -> ReplicaLoad {
        let rate = rate * MIB as f64;
        ReplicaLoad {
            rate: PerLocality { local: rate, remote: rate / 2.0 },
            is_remote_measured: true,
            latency: PerLocality::default(),
            is_latency_uncertain: false,
            in_flight: 0,
            remote_in_flight: 0,
            in_flight_work: 0.0,
            reads_in_flight: 0,
            cap: 2 * MIB,
            max_reads: 8,
            lending: LendingLimit::Unlimited,
            lent_reads: 0,
            overdue: 0.0,
        }
    }

    fn loads<const N: usize>(rates: [f64; N]) -> ReplicaMap<ReplicaLoad> {
        rates.map(load).into_iter().collect()
    }

    fn r(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    fn only(i: usize) -> ReplicaSet {
        ReplicaSet::EMPTY.with(r(i))
    }

    fn held(local: ReplicaSet) -> Holders {
        Holders::local(local)
    }

    /// Segment `i` of a file that all replicas have.
    fn demand(i: usize, replicas: usize) -> WaitingSegment {
        let all = ReplicaSet::first(replicas);
        let start = i as u64 * MIB;
        WaitingSegment {
            bytes: MIB,
            candidates: all,
            holders: held(all),
            home: None,
            is_readahead: true,
            file_number: 1,
            start,
            open_on: all,
        }
    }

    /// The dispatched segments, each with its replica.
    fn send(
        loads: &ReplicaMap<ReplicaLoad>,
        demands: impl Iterator<Item = WaitingSegment>,
    ) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        let demands: Vec<_> = demands.enumerate().collect();
        Assigner::new(loads.len()).assign(demands.into_iter(), loads, &mut out);
        out.iter().map(|a| (a.key, a.replica.index())).collect()
    }

    /// Segments without runs: each is of another file.
    fn apart(n: usize, replicas: usize) -> impl Iterator<Item = WaitingSegment> {
        (0..n).map(move |i| WaitingSegment { file_number: i as u64, ..demand(2 * i, replicas) })
    }

    #[test]
    fn a_segment_goes_to_the_fastest_replica() {
        assert_eq!(send(&loads([40.0, 160.0, 100.0]), apart(1, 3)), [(0, 1)]);
    }

    #[test]
    fn a_slow_replica_gets_a_segment_far_enough_ahead() {
        let loads = loads([100.0, 10.0]);
        // 100 ms on the slow one: the fast one completes ten in that time.
        let sent = send(&loads, apart(32, 2));
        let slow = sent.iter().find(|(_, replica)| *replica == 1).unwrap();
        assert!((9..=11).contains(&slow.0), "{sent:?}");
        assert_eq!(send(&loads, apart(8, 2)).iter().filter(|(_, r)| *r == 1).count(), 0);
    }

    #[test]
    fn a_small_file_is_read_from_a_replica_that_has_it_open() {
        let small = |i: usize| WaitingSegment { bytes: 4096, open_on: only(1), ..demand(2 * i, 2) };
        assert_eq!(send(&loads([110.0, 100.0]), [small(0)].into_iter()), [(0, 1)]);
        let mut loads = loads([100.0, 100.0]);
        let slower = |by: f64| PerLocality { local: by, remote: by };
        // The other one's latency is unknown, or the difference is noise.
        loads[r(1)].latency = slower(0.9e-3);
        assert_eq!(send(&loads, [small(0)].into_iter()), [(0, 1)]);
        // But a reader does not wait for one that is much slower, or has no room.
        loads[r(1)].latency = slower(0.1);
        assert_eq!(send(&loads, [small(0)].into_iter()), [(0, 0)]);
        loads[r(1)].latency = slower(10e-6);
        loads[r(1)].reads_in_flight = loads[r(1)].max_reads;
        loads[r(1)].in_flight_work = 1e-3;
        assert_eq!(send(&loads, [small(0)].into_iter()), [(0, 0)]);
    }

    #[test]
    fn an_uncertain_latency_does_not_cause_a_second_open() {
        let small = WaitingSegment { bytes: 4096, open_on: only(1), ..demand(0, 2) };
        let mut loads = loads([100.0, 100.0]);
        loads[r(1)].latency = PerLocality { local: 0.1, remote: 0.1 };
        loads[r(0)].is_latency_uncertain = true;
        assert_eq!(send(&loads, [small].into_iter()), [(0, 1)]);
        loads[r(0)].is_latency_uncertain = false;
        assert_eq!(send(&loads, [small].into_iter()), [(0, 0)]);
        loads[r(1)].is_latency_uncertain = true;
        assert_eq!(send(&loads, [small].into_iter()), [(0, 1)]);
    }

    #[test]
    fn no_replica_exceeds_its_in_flight_limit() {
        assert_eq!(send(&loads([100.0, 100.0]), apart(100, 2)).len(), 4);
    }

    #[test]
    fn only_candidates_are_chosen() {
        let loads = loads([100.0, 100.0]);
        let one = WaitingSegment { candidates: only(1), ..demand(0, 2) };
        assert_eq!(send(&loads, [one].into_iter()), [(0, 1)]);
        let none = WaitingSegment { candidates: ReplicaSet::EMPTY, ..one };
        assert_eq!(send(&loads, [none].into_iter()), []);
    }

    #[test]
    fn a_home_lends_as_much_of_its_own_chunks_as_it_may() {
        let lent = |home: Option<ReplicaId>, lending: LendingLimit, lent_reads: usize| {
            let holders = held(only(0));
            let mut loads = loads([10.0, 100.0, 100.0]);
            loads[r(0)] = ReplicaLoad { lending, lent_reads, ..loads[r(0)] };
            let all = (0..20).map(|i| WaitingSegment {
                holders,
                home,
                is_readahead: false,
                ..demand(i, 3)
            });
            let sent = send(&loads, all);
            sent.iter().filter(|(_, replica)| *replica != 0).count()
        };
        let home = Some(r(0));
        assert_eq!(lent(home, LendingLimit::Nothing, 0), 0);
        assert_eq!(lent(home, LendingLimit::Trial, 0), 1);
        assert_eq!(lent(home, LendingLimit::Trial, 1), 0);
        assert_eq!(lent(home, LendingLimit::Unlimited, 0), 4);
        // Another node may serve it, or it is small.
        assert_eq!(lent(None, LendingLimit::Nothing, 0), 4);
    }

    #[test]
    fn a_spare_copy_counts_only_without_a_local_replica() {
        let holders = Holders { spare: only(1), ..held(only(0)) };
        let near = |i| WaitingSegment { holders, ..demand(i, 3) };
        assert_eq!(send(&loads([100.0; 3]), [near(0)].into_iter()), [(0, 0)]);
        let without_local = ReplicaSet::first(3).minus(only(0));
        let left = WaitingSegment { candidates: without_local, ..near(0) };
        assert_eq!(send(&loads([100.0, 90.0, 100.0]), [left].into_iter()), [(0, 1)]);
    }

    #[test]
    fn readahead_stays_on_one_replica_while_balanced() {
        let mut loads = loads([100.0, 100.0]);
        for (_, load) in loads.iter_mut() {
            load.cap = 64 * MIB;
            load.max_reads = 64;
        }
        let sent = send(&loads, (0..32).map(|i| demand(i, 2)));
        let hops = sent.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        assert!((1..=12).contains(&hops), "{sent:?}");
        let to_first = sent.iter().filter(|(_, replica)| *replica == 0).count();
        assert!((14..=18).contains(&to_first), "{sent:?}");
        // Segments that a reader waits for are spread at once.
        let waiting = (0..2).map(|i| WaitingSegment { is_readahead: false, ..demand(i, 2) });
        assert_eq!(send(&loads, waiting), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_local_replica_is_used_unless_much_later() {
        let loads = loads([100.0, 100.0]);
        let here = |i| WaitingSegment { holders: held(only(1)), ..demand(i, 2) };
        assert_eq!(send(&loads, (0..2).map(here)), [(0, 1), (1, 1)]);
        // The remote one, at half the rate, completes the third when it is due.
        let sent = send(&loads, (0..4).map(here));
        assert_eq!(sent.iter().filter(|(_, replica)| *replica == 0).count(), 1, "{sent:?}");
    }

    #[test]
    fn a_remote_replica_is_used_if_much_sooner() {
        let mut loads = loads([100.0, 100.0]);
        loads[r(1)].rate.local = MIB as f64;
        let first = WaitingSegment { holders: held(only(1)), ..demand(0, 2) };
        assert_eq!(send(&loads, [first].into_iter()), [(0, 0)]);
    }

    #[test]
    fn replicas_with_own_chunks_do_not_fetch_others() {
        let mut loads = loads([100.0, 100.0]);
        for (_, load) in loads.iter_mut() {
            load.cap = 64 * MIB;
            load.max_reads = 64;
        }
        let chunk = |i| WaitingSegment { holders: held(only(i / 16)), ..demand(i, 2) };
        let sent = send(&loads, (0..32).map(chunk));
        assert!(sent.iter().all(|(i, replica)| i / 16 == *replica), "{sent:?}");
    }

    #[test]
    fn an_awaited_segment_does_not_queue_behind_later_ones() {
        let mut loads = loads([100.0, 100.0]);
        loads[r(0)].rate.local = MIB as f64;
        let urgent = WaitingSegment { holders: held(only(0)), is_readahead: false, ..demand(0, 2) };
        let own = (1..60).map(|i| WaitingSegment { holders: held(only(1)), ..demand(i, 2) });
        let sent = send(&loads, std::iter::once(urgent).chain(own));
        assert_eq!(sent[0], (0, 1));
    }

    #[test]
    fn replicas_holding_a_chunk_share_its_segments() {
        let mut loads = loads([100.0, 100.0, 100.0]);
        for (_, load) in loads.iter_mut() {
            load.cap = 64 * MIB;
            load.max_reads = 64;
            // Proxying gains nothing.
            load.rate.remote = MIB as f64;
        }
        let two = only(0).or(only(2));
        let sent =
            send(&loads, (0..32).map(|i| WaitingSegment { holders: held(two), ..demand(i, 3) }));
        let to = |r| sent.iter().filter(|(_, replica)| *replica == r).count();
        assert!(to(0).abs_diff(to(2)) <= 4 && to(1) <= 1, "{sent:?}");
    }
}
