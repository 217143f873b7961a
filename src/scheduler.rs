//! Which replica reads which segment, and when.
//!
//! Segments that are wanted wait in one queue for the whole volume, the most
//! urgent first. Whenever something changed (a segment was wanted, one came
//! back, time passed) the owner asks [`Scheduler::schedule`] what to send where.
//! Pure parts answer:
//!
//! - [`estimate`]: how fast each replica delivers, measured apart for segments
//!   that its node holds and for others ([`rate`]); how long its reads take at
//!   least; how much is in flight to it. [`cache_hits`]: deliveries from a page cache, which
//!   do not count as measurements.
//! - [`assign`]: each waiting segment goes to the replica that is expected to
//!   complete it first, counting what is in flight there *and* what waits
//!   before it. So a slow replica is given segments far ahead of the reader, in
//!   time to be ready when he gets there, and none at all where a fast one
//!   would be done sooner. Round-robin over 160, 100 and 40 MiB/s delivers 120.
//!   Whose node holds the segment goes first; who does not is asked where that
//!   is measurably sooner.
//! - `hedge_scan`: which late segments a second replica is asked for.
//! - [`fair_queue`]: in which order files are served.
//!
//! Which replicas may be asked at all, and when a segment is late, is decided for reads and
//! metadata calls alike, in [`crate::replicas`]. The owner passes the
//! [`HealthBoard`] that both share.
//!
//! A segment is bound to a replica as late as possible: what exceeds a
//! replica's in-flight cap (about twice rate x latency) stays in the queue and
//! is thought over again at the next event.
//!
//! *Invariants:* nothing here does I/O or reads a clock; time comes in as an
//! argument. A segment that was wanted is sent until it is delivered,
//! cancelled, or has nobody left to be sent to. In-flight counts equal the
//! attempts that have not finished.

pub mod assign;
pub mod cache_hits;
pub mod estimate;
pub mod fair_queue;
mod hedge_scan;
mod probe;
pub mod rate;

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
use rate::{Locality, PerLocality};

/// Names one attempt to read one segment from one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u64);

/// Names a segment that waits in the queue, and orders it: those that a reader
/// waits for come first, then the others; files in [`fair_queue`], the segments of
/// one as they came. (Ordered by the distance from the reader when they came, a
/// window that is refilled in one go overtakes what had been wanted before it,
/// and the reader waits for that.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// `false` sorts first.
    is_readahead: bool,
    start_tag: u64,
    sequence: u64,
}

/// A segment that is wanted.
#[derive(Clone, Debug)]
pub struct SegmentRequest<T> {
    /// What the owner knows it by.
    pub item: T,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is fetched ahead, and nobody waits for it yet.
    pub is_readahead: bool,
    /// Replicas that it may be read from.
    pub candidates: ReplicaSet,
    /// Who holds its chunk.
    pub holders: Holders,
    /// Replicas that it is pinned to: others are asked only where none of them
    /// can be. Empty where it is not pinned.
    pub pinned: ReplicaSet,
    /// Whether it is on its way from another replica, which is late.
    pub is_hedge: bool,
    /// Names the file that it belongs to.
    pub file_number: u64,
    /// Its first byte there.
    pub start: u64,
    /// Replicas that have the file open; all where that does not matter.
    pub open_on: ReplicaSet,
}

impl<T> SegmentRequest<T> {
    /// Whom to choose from while `usable` may be asked.
    /// None of those where reads of its file hang: one more would take a place and wait.
    fn eligible_replicas(&self, usable: ReplicaSet, hung: &HungFiles) -> ReplicaSet {
        let hung = hung.get(&self.file_number).copied().unwrap_or(ReplicaSet::EMPTY);
        let candidates = self.candidates.minus(hung);
        // A segment whose candidates are all ejected is better tried than
        // failed: the last replica is never ejected.
        let healthy = candidates.and(usable);
        let left = if healthy.is_empty() { candidates } else { healthy };
        let pinned = left.and(self.pinned);
        if pinned.is_empty() { left } else { pinned }
    }

    fn locality(&self, replica: ReplicaId) -> Locality {
        if self.holders.local.contains(replica) { Locality::Local } else { Locality::Remote }
    }
}

/// A decision: send this segment there. Finish it with [`Scheduler::attempt_finished`].
#[derive(Debug)]
pub struct Dispatch<T> {
    /// Names the attempt.
    pub attempt: AttemptId,
    /// The segment.
    pub item: T,
    /// Its size in bytes.
    pub bytes: u64,
    /// Where to read it.
    pub replica: ReplicaId,
    /// Whether that one's node holds it.
    pub locality: Locality,
}

/// What is known of an attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedAttempt {
    /// How long it took.
    pub took: Duration,
    /// How long it took to be served: the time since what came before it.
    /// `None` where it was too small to tell, or did not deliver.
    pub service_time: Option<Duration>,
    /// Whether the replica's node holds the segment.
    pub locality: Locality,
    /// Whether it was a second read of what was late elsewhere.
    pub is_hedge: bool,
}

/// A segment that is later than it should be and may go to another replica too.
#[derive(Debug)]
pub struct LateAttempt<T> {
    /// The segment.
    pub item: T,
    /// Who is late with it.
    pub replica: ReplicaId,
    /// Whom to ask.
    pub candidates: ReplicaSet,
    /// The attempt that is late.
    attempt: AttemptId,
    /// What the second one is to cost.
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
    /// It did not come to a read, and the replica is not to blame.
    Neutral,
}

/// How the scheduler is set up; the same for all replicas but where named.
#[derive(Clone, Debug)]
pub struct SchedulerPolicy {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// How long an attempt may take before another replica is asked in any case.
    pub attempt_deadline: Duration,
}

/// What the scheduler needs to know of one replica beforehand.
#[derive(Clone, Debug)]
pub struct ReplicaPolicy {
    /// Relative speed until there is a measurement.
    pub weight: f64,
    /// Most bytes in flight.
    pub max_in_flight: u64,
    /// Most reads in flight: the threads that its pool has for them.
    pub max_reads: usize,
}

struct Attempt<T> {
    item: T,
    replica: ReplicaId,
    read: InFlightRead,
    expected: Duration,
    /// Who else might have been sent it.
    other_candidates: ReplicaSet,
    /// Who of them holds a copy of it.
    other_holders: ReplicaSet,
    /// Whether others would read another copy of it.
    has_other_copies: bool,
    /// Whether a second replica has been asked since.
    is_hedged: bool,
    /// Whether it is a second one itself.
    is_hedge: bool,
    /// A probe that a reader waits for: another replica is asked after this
    /// time, which is paid for already.
    hedge_after: Option<Duration>,
    /// The segment: its file and its offset.
    segment_key: (u64, u64),
    /// Whether another replica has delivered the segment since.
    is_delivered_elsewhere: bool,
    /// Whether its replica's in-flight limit no longer counts it, so that an attempt
    /// that hangs does not keep other segments out.
    is_written_off: bool,
}

/// What `fanfs status` shows of one replica.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSnapshot {
    /// Its health.
    pub health: HealthSnapshot,
    /// The measured rate that the next decision will use, bytes a second.
    pub rate: PerLocality<f64>,
    /// Whether any of it was measured.
    pub is_measured: bool,
    /// The part of a read's time that does not depend on its size.
    pub latency: Duration,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes that may be in flight.
    pub cap: u64,
}

/// The queue and everything known about the replicas.
pub struct Scheduler<T> {
    policy: SchedulerPolicy,
    estimates: ReplicaMap<ReplicaEstimate>,
    lateness: ReplicaMap<LatenessHistogram>,
    hedges: HedgeBudget,
    queue: BTreeMap<QueueKey, SegmentRequest<T>>,
    fair_queue: FairQueue,
    /// In order, so that what is decided about them is the same in each run.
    attempts: BTreeMap<AttemptId, Attempt<T>>,
    assigner: Assigner<QueueKey>,
    /// Kept between rounds for its memory.
    assignments: Vec<Assignment<QueueKey>>,
    sequence: u64,
    last_probe: Option<Instant>,
    /// Replicas that have not delivered anything for longer than an attempt may take.
    stuck_replicas: ReplicaSet,
    hung_files: HungFiles,
}

/// Files with the replicas on which reads of them hang.
type HungFiles = BTreeMap<u64, ReplicaSet>;

/// How many segments may be read twice in one go, however much was delivered before.
const HEDGE_BURST_SEGMENTS: u64 = 8;

/// And so many more for each replica, where one delivers nothing while others do:
/// half of what it has in flight by default.
const HEDGE_OVERDRAFT_SEGMENTS: u64 = 3;

/// What second reads may cost, in bytes.
fn read_hedge_limits(segment: u64, replicas: usize) -> HedgeLimits {
    HedgeLimits {
        burst: segment * HEDGE_BURST_SEGMENTS,
        overdraft: segment * HEDGE_OVERDRAFT_SEGMENTS * replicas as u64,
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
            ReplicaEstimate::new(replica.weight, limits, now)
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
        }
    }

    /// Puts a segment into the queue.
    pub fn enqueue(&mut self, want: SegmentRequest<T>) -> QueueKey {
        self.sequence += 1;
        // A second read of what is late was paid for with the first.
        let turn = match want.is_hedge {
            true => self.fair_queue.virtual_time(),
            false => self.fair_queue.assign_tag(want.file_number, want.bytes),
        };
        let id =
            QueueKey { is_readahead: want.is_readahead, start_tag: turn, sequence: self.sequence };
        self.queue.insert(id, want);
        id
    }

    /// Moves a waiting segment to the front: a reader has reached it. Nothing
    /// happens where it has been sent already.
    pub fn promote(&mut self, id: QueueKey) -> Option<QueueKey> {
        let mut want = self.queue.remove(&id)?;
        want.is_readahead = false;
        let id = QueueKey { is_readahead: false, ..id };
        self.queue.insert(id, want);
        Some(id)
    }

    /// Takes a segment out of the queue; `None` where it has been sent already.
    pub fn cancel(&mut self, id: QueueKey) -> Option<SegmentRequest<T>> {
        let want = self.queue.remove(&id)?;
        if !want.is_hedge {
            self.fair_queue.refund(want.file_number, want.bytes);
        }
        Some(want)
    }

    /// What is fetched ahead and waits, the least urgent first.
    pub fn queued_readahead(&self) -> impl Iterator<Item = &SegmentRequest<T>> {
        self.queue.values().rev().take_while(|want| want.is_readahead)
    }

    /// Decides what to send now, appending to `out`.
    pub fn schedule(&mut self, health: &mut HealthBoard, now: Instant, out: &mut Vec<Dispatch<T>>) {
        if self.queue.is_empty() {
            return;
        }
        let usable = health.usable(now);
        // The last one is not ejected, but it may hang: what waits for its room would
        // wait until it heals, while one that is ejected may be back.
        let usable = if usable.minus(self.stuck_replicas).is_empty() {
            self.estimates.all()
        } else {
            usable
        };
        let loads = self.loads(health, now);
        // Where the others take whatever is wanted at once, nothing is left for it
        // afterwards. What is small would tell nothing.
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
            // A reader does not wait longer because a replica is probed.
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
        let SegmentRequest { item, bytes, candidates, is_hedge: hedge, holders, .. } = want;
        let others = candidates.minus(ReplicaSet::EMPTY.with(replica));
        let copies = others.and(holders.local);
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
            is_written_off: false,
        };
        self.attempts.insert(attempt, state);
        Dispatch { attempt, item, bytes, replica, locality }
    }

    /// An attempt ended. Call [`Scheduler::schedule`] afterwards: there is room now.
    /// `None` where there is no such attempt.
    pub fn attempt_finished(
        &mut self,
        attempt: AttemptId,
        outcome: AttemptOutcome,
        health: &mut HealthBoard,
        now: Instant,
    ) -> Option<FinishedAttempt> {
        let attempt = self.attempts.remove(&attempt)?;
        let replica = attempt.replica;
        if matches!(outcome, AttemptOutcome::Delivered(_))
            && (attempt.is_hedge || attempt.is_hedged)
        {
            let same = self.attempts.values_mut().filter(|a| a.segment_key == attempt.segment_key);
            same.for_each(|other| other.is_delivered_elsewhere = true);
        }
        let estimate = &mut self.estimates[replica];
        let took = now.saturating_duration_since(attempt.read.at);
        let mut service = None;
        match outcome {
            AttemptOutcome::Delivered(bytes)
                if attempt.is_written_off || health.was_ejected_since(replica, attempt.read.at) =>
            {
                estimate.record_hung_delivery(now, attempt.read);
                self.hedges.refill(bytes);
                health.record_delivery(replica, now);
            }
            AttemptOutcome::Delivered(bytes) => {
                service = estimate.record_delivery(now, attempt.read, bytes);
                self.lateness[replica].add(took, attempt.expected);
                self.hedges.refill(bytes);
                if service.is_some() {
                    let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
                    let best = self.best_other_rate(replica, now);
                    health.record_delivery_rate(replica, rate, best, now);
                } else {
                    health.record_delivery(replica, now);
                }
            }
            AttemptOutcome::Failed => {
                estimate.remove_unmeasured(now, attempt.read);
                health.record_failure(replica, now);
            }
            AttemptOutcome::AmbiguousError => {
                estimate.remove_unmeasured(now, attempt.read);
                health.record_ambiguous_error(replica, now);
            }
            AttemptOutcome::Neutral => estimate.remove_unmeasured(now, attempt.read),
        }
        Some(FinishedAttempt {
            took,
            service_time: service,
            locality: attempt.read.locality,
            is_hedge: attempt.is_hedge,
        })
    }

    /// What the best of the other replicas delivers, bytes a second, as far as that
    /// was measured.
    fn best_other_rate(&self, replica: ReplicaId, now: Instant) -> f64 {
        let others = self.estimates.iter().filter(|(id, _)| *id != replica);
        others.filter_map(|(_, estimate)| estimate.comparable_rate(now)).fold(0.0, f64::max)
    }

    /// Whether anything waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.attempts.is_empty()
    }

    /// Segments that wait, and attempts in flight.
    pub fn depth(&self) -> (usize, usize) {
        (self.queue.len(), self.attempts.len())
    }

    /// What is known of each replica now.
    pub fn snapshots(&self, health: &HealthBoard, now: Instant) -> ReplicaMap<ReplicaSnapshot> {
        self.estimates.map(|id, estimate| {
            let load = estimate.load(now);
            ReplicaSnapshot {
                health: health.snapshot(id, now),
                rate: load.rate,
                is_measured: estimate.comparable_rate(now).is_some(),
                latency: Duration::from_secs_f64(load.latency.local.min(load.latency.remote)),
                in_flight: load.in_flight,
                cap: load.cap,
            }
        })
    }

    /// What a replica delivers over a long time, where there is enough to tell.
    pub fn steady_rates(&self, replica: ReplicaId) -> PerLocality<Option<f64>> {
        self.estimates[replica].steady_rates()
    }

    /// When the last of these replicas delivered something.
    pub fn last_delivery(&self, of: ReplicaSet) -> Option<Instant> {
        of.iter().filter_map(|id| self.estimates[id].last_delivery()).max()
    }

    fn loads(&mut self, health: &HealthBoard, now: Instant) -> ReplicaMap<estimate::ReplicaLoad> {
        // One that has delivered nothing yet is taken for as good as the best,
        // by weight: that is how it gets to show what it can do.
        let best = self
            .estimates
            .iter()
            .filter_map(|(_, estimate)| Some(estimate.measured_rate(now)? / estimate.weight()))
            .fold(0.0, f64::max);
        if best > 0.0 {
            for (_, estimate) in self.estimates.iter_mut() {
                estimate.set_assumed_rate(best * estimate.weight());
            }
        }
        self.estimates.map(|id, estimate| {
            let mut load = estimate.load(now);
            if health.state(id) == HealthState::Probing {
                // One attempt at a time shows whether it is back.
                load.cap = 1;
            }
            load
        })
    }
}
