//! Decides which replica reads which segment, and when.
//!
//! Requested segments wait in one queue for the whole volume, the most urgent first. After each
//! event (a new segment, a delivery, passed time) the owner calls [`Scheduler::schedule`] for the
//! reads to dispatch. The decisions are pure:
//!
//! - [`estimate`]: how fast each replica delivers, measured separately for segments that its node
//!   holds and for others ([`rate`]); the minimum time of its reads; the bytes in flight to it.
//!   [`cache_hits`]: deliveries from a page cache, which do not count as measurements.
//! - [`assign`]: each waiting segment goes to the replica with the earliest expected completion,
//!   counting the work in flight there *and* the work queued before it. So a slow replica gets
//!   segments far ahead of the reader, in time for the reader to arrive. It gets none if a fast
//!   replica would complete them sooner. Round-robin over 160, 100 and 40 MiB/s delivers 120. A
//!   replica whose node holds the segment goes first; another is asked if it is measurably sooner.
//! - [`lending`]: whether it gains anything to read a chunk through a replica whose node must fetch
//!   it from the only one that serves it.
//! - `hedge_scan`: which late segments are hedged.
//! - [`fair_queue`]: the order in which files are served.
//! - [`small_reads`]: the choice for a small read, from published loads.
//!
//! [`crate::replicas`] decides which replicas may be asked at all, and when a segment is late, for
//! reads and metadata calls alike. The owner passes the [`HealthBoard`] that both share.
//!
//! A segment is bound to a replica as late as possible. Segments beyond a replica's in-flight cap
//! (about twice rate x latency) stay in the queue, and the next event decides again.
//!
//! *Invariants:* nothing here does I/O or reads a clock; time comes in as an argument. A requested
//! segment is dispatched until it is delivered, cancelled, or has no replica left. In-flight counts
//! equal the attempts that have not finished.

pub mod assign;
pub mod cache_hits;
pub mod estimate;
pub mod fair_queue;
mod hedge_scan;
pub mod lending;
mod probe;
pub mod rate;
pub mod small_reads;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::replicas::health::{HealthSnapshot, HealthState};
use crate::replicas::health_board::HealthBoard;
use crate::replicas::hedge_budget::{HedgeBudget, HedgeLimits, HedgePrice};
use crate::replicas::lateness::LatenessHistogram;
use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};
use assign::{Assigner, Assignment, WaitingSegment};
use estimate::{InFlightLimits, InFlightRead, ReplicaEstimate};
use fair_queue::FairQueue;
use lending::{HomeRead, HomeView, LendingGain};
use rate::{Locality, PerLocality};

/// Identifies one attempt to read one segment from one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u64);

/// Identifies a waiting segment, and orders the queue: segments that a reader waits for come first,
/// then readahead. Within each, files take turns as in [`fair_queue`], and the segments of a file
/// keep their order of arrival. They are not ordered by distance from the reader: a window that is
/// refilled in one go would overtake earlier requests. The reader would wait for those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// `false` sorts first.
    is_readahead: bool,
    start_tag: u64,
    sequence: u64,
}

/// A requested segment.
#[derive(Clone, Debug)]
pub struct SegmentRequest<T> {
    /// The owner's handle for it.
    pub item: T,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is readahead, which no request waits for yet.
    pub is_readahead: bool,
    /// Replicas that it may be read from.
    pub candidates: ReplicaSet,
    /// The holders of its chunk.
    pub holders: Holders,
    /// Replicas to which it is pinned: others are asked only if none of them can be. Empty if it is
    /// not pinned.
    pub pinned: ReplicaSet,
    /// Whether it is a second read, because the first one is late.
    pub is_hedge: bool,
    /// Identifies the file that it belongs to.
    pub file_number: u64,
    /// Its first byte in the file.
    pub start: u64,
    /// Replicas that have the file open; all if that does not matter.
    pub open_on: ReplicaSet,
}

impl<T> SegmentRequest<T> {
    /// The replicas to choose from while `usable` may be asked. Excludes those where reads of its
    /// file hang: one more read would take a place and wait.
    fn eligible_replicas(&self, usable: ReplicaSet, hung: &HungFiles) -> ReplicaSet {
        let candidates = self.candidates_not_hung(hung);
        // If all its candidates are ejected, trying one is better than failing: the last replica is
        // never ejected.
        let healthy = candidates.and(usable);
        let left = if healthy.is_empty() { candidates } else { healthy };
        let pinned = left.and(self.pinned);
        if pinned.is_empty() { left } else { pinned }
    }

    fn candidates_not_hung(&self, hung: &HungFiles) -> ReplicaSet {
        let hung = hung.get(&self.file_number).copied().unwrap_or(ReplicaSet::EMPTY);
        self.candidates.minus(hung)
    }

    /// The replica that lends it to others. A small segment depends on latency, not on a node's rate,
    /// and may be read anywhere.
    fn home(&self, segment: u64) -> Option<ReplicaId> {
        self.holders.sole_holder().filter(|_| estimate::is_large(self.bytes, segment))
    }

    fn locality(&self, replica: ReplicaId) -> Locality {
        if self.holders.local.contains(replica) { Locality::Local } else { Locality::Remote }
    }
}

/// A decision to read this segment from that replica. End it with [`Scheduler::attempt_finished`].
#[derive(Debug)]
pub struct Dispatch<T> {
    /// The id of the attempt.
    pub attempt: AttemptId,
    /// The segment.
    pub item: T,
    /// Its size in bytes.
    pub bytes: u64,
    /// The replica to read from.
    pub replica: ReplicaId,
    /// Whether that replica's node holds it.
    pub locality: Locality,
}

/// The measurements of an ended attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedAttempt {
    /// How long it took.
    pub took: Duration,
    /// Its service time: the time since the delivery before it. `None` for a small read, or without
    /// a delivery.
    pub service_time: Option<Duration>,
    /// Whether the replica's node holds the segment.
    pub locality: Locality,
    /// Whether it was a hedge.
    pub is_hedge: bool,
}

/// The present need for a segment in flight.
#[derive(Clone, Copy, Debug)]
pub struct SegmentNeed {
    /// Whether a reader waits for it.
    pub is_awaited: bool,
    /// The replicas that may be asked instead of those that have been.
    pub alternatives: ReplicaSet,
}

/// A late segment that may be hedged: queue it again, or call [`Scheduler::cancel_hedge`].
#[derive(Debug)]
#[must_use]
pub struct LateAttempt<T> {
    /// The segment.
    pub item: T,
    /// The replica that is late.
    pub replica: ReplicaId,
    /// The replicas that may be asked.
    pub candidates: ReplicaSet,
    /// When the late attempt began.
    pub since: Instant,
    /// The late attempt.
    attempt: AttemptId,
    /// The price of the hedge.
    price: HedgePrice,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The replica delivered this many bytes.
    Delivered(u64),
    /// The replica failed.
    Failed,
    /// The replica or the object failed: a call on the replica's root decides which.
    AmbiguousError,
    /// There was no read, and the replica is not to blame.
    Neutral,
}

/// The scheduler's settings for all replicas.
#[derive(Clone, Debug)]
pub struct SchedulerPolicy {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// How long an attempt may take before another replica is asked in any case.
    pub attempt_deadline: Duration,
}

/// The scheduler's settings for one replica.
#[derive(Clone, Debug)]
pub struct ReplicaPolicy {
    /// Relative speed until there is a measurement.
    pub weight: f64,
    /// Most bytes in flight.
    pub max_in_flight: u64,
    /// Most reads in flight: the threads that its pool has for reads, if each read holds one.
    pub max_reads: usize,
    /// The rate that the configuration limits it to, bytes a second.
    pub max_rate: Option<u64>,
}

struct Attempt<T> {
    item: T,
    replica: ReplicaId,
    read: InFlightRead,
    expected: Duration,
    /// The other replicas that could be asked when it began.
    other_candidates: ReplicaSet,
    /// Those of them that hold a copy of it.
    other_holders: ReplicaSet,
    /// Whether other replicas would read another copy of it.
    has_other_copies: bool,
    /// Whether it has been hedged.
    is_hedged: bool,
    /// Whether it is a hedge itself.
    is_hedge: bool,
    /// For a probe that a reader waits for: the time after which it is hedged, at a price that is
    /// already paid.
    hedge_after: Option<Duration>,
    /// The segment: its file and its offset.
    segment_key: (u64, u64),
    /// Whether another replica has delivered the segment since.
    is_delivered_elsewhere: bool,
    /// Its record for the gain of lending. `None` if it is small, or several nodes serve its chunk.
    home_read: Option<HomeRead>,
    /// Its record among its replica's reads in flight. `None` if it is written off: a hung attempt
    /// must not block other segments.
    in_flight: Option<InFlightRead>,
}

/// One replica's state for `fanfs status`.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSnapshot {
    /// Its health.
    pub health: HealthSnapshot,
    /// The rate that the next decision will use, bytes a second; assumed until it is measured.
    pub rate: PerLocality<f64>,
    /// Whether it was measured.
    pub is_measured: PerLocality<bool>,
    /// The part of a read's time that does not depend on its size.
    pub latency: Duration,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes that may be in flight.
    pub cap: u64,
}

/// The queue, and the measurements of the replicas.
pub struct Scheduler<T> {
    policy: SchedulerPolicy,
    estimates: ReplicaMap<ReplicaEstimate>,
    lateness: ReplicaMap<LatenessHistogram>,
    hedges: HedgeBudget,
    queue: BTreeMap<QueueKey, SegmentRequest<T>>,
    fair_queue: FairQueue,
    /// Ordered, so that decisions about them are the same in each run.
    attempts: BTreeMap<AttemptId, Attempt<T>>,
    assigner: Assigner<QueueKey>,
    /// Kept between rounds to reuse its memory.
    assignments: Vec<Assignment<QueueKey>>,
    sequence: u64,
    last_probe: Option<Instant>,
    /// Replicas with an attempt past its deadline and no delivery since it was sent.
    stuck_replicas: ReplicaSet,
    hung_files: HungFiles,
    lending: LendingGain,
}

/// Files, with the replicas on which reads of them hang.
type HungFiles = BTreeMap<u64, ReplicaSet>;

/// The most segments that may be hedged in one burst, regardless of deliveries.
const HEDGE_BURST_SEGMENTS: u64 = 8;

/// Segments of overdraft for each replica, used when a replica delivers nothing while others do:
/// half of the reads that it has in flight by default.
const HEDGE_OVERDRAFT_SEGMENTS: u64 = 3;

/// The limits for hedged reads, in bytes.
fn read_hedge_limits(segment: u64, replicas: usize) -> HedgeLimits {
    HedgeLimits {
        burst: segment * HEDGE_BURST_SEGMENTS,
        overdraft: segment * HEDGE_OVERDRAFT_SEGMENTS * replicas as u64,
    }
}

/// Records the outcome of an attempt that measured nothing.
fn record_health(
    health: &mut HealthBoard,
    replica: ReplicaId,
    outcome: AttemptOutcome,
    now: Instant,
) {
    match outcome {
        AttemptOutcome::Delivered(_) => health.record_delivery(replica, now),
        AttemptOutcome::Failed => health.record_failure(replica, now),
        AttemptOutcome::AmbiguousError => health.record_ambiguous_error(replica, now),
        AttemptOutcome::Neutral => {}
    }
}

impl<T: Clone> Scheduler<T> {
    /// A scheduler with an empty queue.
    pub fn new(policy: SchedulerPolicy, replicas: ReplicaMap<ReplicaPolicy>, now: Instant) -> Self {
        let estimates = replicas.map(|_, replica| {
            let limits = InFlightLimits {
                segment: policy.segment,
                max_bytes: replica.max_in_flight,
                max_reads: replica.max_reads,
            };
            let mut estimate = ReplicaEstimate::new(replica.weight, limits, now);
            estimate.set_max_rate(replica.max_rate);
            estimate
        });
        Self {
            lateness: replicas.map(|_, _| LatenessHistogram::default()),
            hedges: HedgeBudget::new(read_hedge_limits(policy.segment, replicas.len())),
            policy,
            assigner: Assigner::new(estimates.len()),
            estimates,
            queue: BTreeMap::new(),
            fair_queue: FairQueue::default(),
            attempts: BTreeMap::new(),
            assignments: Vec::new(),
            sequence: 0,
            last_probe: None,
            stuck_replicas: ReplicaSet::EMPTY,
            hung_files: HungFiles::new(),
            lending: LendingGain::new(replicas.len()),
        }
    }

    /// Queues a segment.
    pub fn enqueue(&mut self, want: SegmentRequest<T>) -> QueueKey {
        self.sequence += 1;
        // A hedge costs its file no turn: the first read has paid for it.
        let turn = match want.is_hedge {
            true => self.fair_queue.virtual_time(),
            false => self.fair_queue.assign_tag(want.file_number, want.bytes),
        };
        let id =
            QueueKey { is_readahead: want.is_readahead, start_tag: turn, sequence: self.sequence };
        self.queue.insert(id, want);
        id
    }

    /// Moves waiting readahead among the segments that a reader waits for. `None` if it has been
    /// dispatched already.
    pub fn promote(&mut self, id: QueueKey) -> Option<QueueKey> {
        let mut want = self.queue.remove(&id)?;
        want.is_readahead = false;
        let id = QueueKey { is_readahead: false, ..id };
        self.queue.insert(id, want);
        Some(id)
    }

    /// Gives segments that no replica may be asked for now their present candidates: the ones of
    /// the time when they were queued may all hang since, and others may work again.
    pub fn refresh_stranded(&mut self, candidates: impl Fn(&T) -> ReplicaSet) {
        for want in self.queue.values_mut() {
            if want.candidates_not_hung(&self.hung_files).is_empty() {
                want.candidates = candidates(&want.item);
            }
        }
    }

    /// Removes a segment from the queue; `None` if it has been dispatched already.
    pub fn cancel(&mut self, id: QueueKey) -> Option<SegmentRequest<T>> {
        let want = self.queue.remove(&id)?;
        if !want.is_hedge {
            self.fair_queue.refund(want.file_number, want.bytes);
        }
        Some(want)
    }

    /// The waiting readahead, the least urgent first.
    pub fn queued_readahead(&self) -> impl Iterator<Item = &SegmentRequest<T>> {
        self.queue.values().rev().take_while(|want| want.is_readahead)
    }

    /// Decides what to dispatch now, appending to `out`.
    pub fn schedule(&mut self, health: &mut HealthBoard, now: Instant, out: &mut Vec<Dispatch<T>>) {
        if self.queue.is_empty() {
            return;
        }
        let usable = health.usable(now);
        // The last replica is never ejected, but it may hang. Segments would wait until it
        // recovers, while an ejected replica may be back.
        let usable = if usable.minus(self.stuck_replicas).is_empty() {
            self.estimates.all()
        } else {
            usable
        };
        let loads = self.loads(health, now);
        // Probe first, because the other replicas may take the whole queue. A small segment would
        // not measure anything.
        let tells = |id: &QueueKey, want: &SegmentRequest<T>| {
            id.is_readahead && want.bytes * 2 > self.policy.segment
        };
        if self.queue.last_key_value().is_some_and(|(id, want)| tells(id, want)) {
            self.probe_idle_replica(health, usable, now, out);
        }
        if self.probe_with_lone_segment(usable, &loads, now, out) {
            return;
        }
        let demands = self.queue.iter().map(|(id, want)| {
            let demand = WaitingSegment {
                bytes: want.bytes,
                candidates: want.eligible_replicas(usable, &self.hung_files),
                holders: want.holders,
                home: want.home(self.policy.segment),
                is_readahead: want.is_readahead,
                file_number: want.file_number,
                start: want.start,
                open_on: want.open_on,
            };
            (*id, demand)
        });
        let mut decided = std::mem::take(&mut self.assignments);
        self.assigner.assign(demands, &loads, &mut decided);
        for Assignment { key, replica, expected, .. } in decided.drain(..) {
            let want = self.queue.remove(&key).expect("assigned segments come from the queue");
            self.fair_queue.advance(key.start_tag);
            let dispatch =
                self.start_attempt(want, replica, Duration::from_secs_f64(expected), now);
            // A reader must not wait longer because a replica is probed.
            if health.state(replica) == HealthState::Probing {
                self.arm_probe_hedge(dispatch.attempt, health, now);
            }
            out.push(dispatch);
        }
        self.assignments = decided;
        self.probe_idle_replica(health, usable, now, out);
    }

    fn start_attempt(
        &mut self,
        want: SegmentRequest<T>,
        replica: ReplicaId,
        expected: Duration,
        now: Instant,
    ) -> Dispatch<T> {
        self.sequence += 1;
        let attempt = AttemptId(self.sequence);
        let locality = want.locality(replica);
        let sent = InFlightRead { at: now, bytes: want.bytes, locality };
        self.estimates[replica].record_sent(sent);
        self.assigner.record_sent(replica, want.file_number, want.start.saturating_add(want.bytes));
        let segment = (want.file_number, want.start);
        let home = want.home(self.policy.segment);
        let SegmentRequest { item, bytes, candidates, is_hedge: hedge, holders, .. } = want;
        let others = candidates.minus(ReplicaSet::EMPTY.with(replica));
        let copies = others.and(holders.local);
        // A second read of the same bytes shows nothing: its node may have them in memory.
        let home_read =
            home.filter(|_| !hedge).map(|home| HomeRead { home, is_lent: home != replica });
        if let Some(read) = home_read {
            self.lending.record_sent(read, now);
        }
        let state = Attempt {
            item: item.clone(),
            replica,
            read: sent,
            expected,
            other_candidates: others,
            other_holders: copies,
            has_other_copies: holders.is_held_elsewhere || !copies.is_empty(),
            is_hedged: false,
            is_hedge: hedge,
            hedge_after: None,
            segment_key: segment,
            is_delivered_elsewhere: false,
            home_read,
            in_flight: Some(sent),
        };
        self.attempts.insert(attempt, state);
        Dispatch { attempt, item, bytes, replica, locality }
    }

    /// Ends an attempt. Call [`Scheduler::schedule`] afterwards: there is room now. `None` if there
    /// is no such attempt.
    pub fn attempt_finished(
        &mut self,
        attempt: AttemptId,
        outcome: AttemptOutcome,
        health: &mut HealthBoard,
        now: Instant,
    ) -> Option<FinishedAttempt> {
        let mut attempt = self.attempts.remove(&attempt)?;
        let replica = attempt.replica;
        self.update_other_attempts(&attempt, outcome);
        let estimate = &mut self.estimates[replica];
        let took = now.saturating_duration_since(attempt.read.at);
        let mut service = None;
        let mut measured_bytes = 0;
        let has_hung =
            attempt.in_flight.is_none() || health.was_ejected_since(replica, attempt.read.at);
        match (outcome, attempt.in_flight.take()) {
            (AttemptOutcome::Delivered(bytes), Some(read)) if !has_hung => {
                service = estimate.record_delivery(now, read, bytes);
                if service.is_some() || estimate.is_memory_speed() {
                    measured_bytes = bytes;
                }
                self.lateness[replica].add(took, attempt.expected);
                self.hedges.refill(bytes);
                if service.is_some() {
                    let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
                    let best = self.best_rate_except(Some(replica), now);
                    health.record_delivery_rate(replica, rate, best, now);
                } else {
                    health.record_delivery(replica, now);
                }
            }
            (outcome, in_flight) => {
                if let Some(read) = in_flight {
                    estimate.remove_unmeasured(now, read);
                }
                if let AttemptOutcome::Delivered(bytes) = outcome {
                    estimate.record_hung_delivery(now);
                    self.hedges.refill(bytes);
                }
                record_health(health, replica, outcome, now);
            }
        }
        if let Some(read) = attempt.home_read {
            self.lending.record_end(read, measured_bytes, now);
        }
        Some(FinishedAttempt {
            took,
            service_time: service,
            locality: attempt.read.locality,
            is_hedge: attempt.is_hedge,
        })
    }

    /// The view of a replica that may lend its chunks.
    fn home_view(&self, load: &estimate::ReplicaLoad, best_rate: f64) -> HomeView {
        HomeView {
            rate: load.rate.local,
            best_rate,
            overdue: load.overdue,
            segment: self.policy.segment,
        }
    }

    /// The best measured rate of the replicas but `replica`, bytes a second; 0 if there is none.
    fn best_rate_except(&self, replica: Option<ReplicaId>, now: Instant) -> f64 {
        let others = self.estimates.iter().filter(|(id, _)| Some(*id) != replica);
        others.filter_map(|(_, estimate)| estimate.comparable_rate(now)).fold(0.0, f64::max)
    }

    /// Whether nothing waits.
    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.attempts.is_empty()
    }

    /// The number of waiting segments, and of attempts in flight.
    pub fn depth(&self) -> (usize, usize) {
        (self.queue.len(), self.attempts.len())
    }

    /// The state of each replica now.
    pub fn snapshots(&self, health: &HealthBoard, now: Instant) -> ReplicaMap<ReplicaSnapshot> {
        self.estimates.map(|id, estimate| {
            let load = estimate.load(now);
            ReplicaSnapshot {
                health: health.snapshot(id, now),
                rate: load.rate,
                is_measured: estimate.is_measured(),
                latency: Duration::from_secs_f64(load.latency.local.min(load.latency.remote)),
                in_flight: load.in_flight,
                cap: load.cap,
            }
        })
    }

    /// A replica's long-term rates, if there are enough deliveries.
    pub fn steady_rates(&self, replica: ReplicaId) -> PerLocality<Option<f64>> {
        self.estimates[replica].steady_rates()
    }

    /// When any of these replicas last delivered something.
    pub fn last_delivery(&self, of: ReplicaSet) -> Option<Instant> {
        of.iter().filter_map(|id| self.estimates[id].last_delivery()).max()
    }

    fn loads(&mut self, health: &HealthBoard, now: Instant) -> ReplicaMap<estimate::ReplicaLoad> {
        // A replica without deliveries is assumed to be as good as the best, by weight, so that it
        // gets the reads that measure it.
        let [mut best, mut fastest] = [0.0f64; 2];
        for (_, estimate) in self.estimates.iter() {
            let Some(rate) = estimate.measured_rate(now) else { continue };
            best = best.max(rate / estimate.weight());
            fastest = fastest.max(estimate.comparable(rate).unwrap_or(0.0));
        }
        if best > 0.0 {
            for (_, estimate) in self.estimates.iter_mut() {
                estimate.set_assumed_rate(best * estimate.weight());
            }
        }
        self.estimates.map(|id, estimate| {
            let mut load = estimate.load(now);
            load.lending = self.lending.limit(id, self.home_view(&load, fastest), now);
            load.lent_reads = self.lending.lent_reads(id);
            if health.state(id) == HealthState::Probing {
                // One attempt at a time shows whether it works again.
                load.cap = 1;
            }
            load
        })
    }
}
