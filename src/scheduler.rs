//! Which replica reads which segment, and when.
//!
//! Segments that are wanted wait in one queue for the whole volume, the most
//! urgent first. Whenever something changed (a segment was wanted, one came
//! back, time passed) the owner asks [`Scheduler::next`] what to send where.
//! Pure parts answer:
//!
//! - [`estimate`]: how fast each replica delivers, measured apart for segments
//!   that its node holds and for others ([`pace`]); how long its reads take at
//!   least; how much is in flight to it. [`cached`]: deliveries from a page cache, which
//!   do not count as measurements.
//! - [`assign`]: each waiting segment goes to the replica that is expected to
//!   complete it first, counting what is in flight there *and* what waits
//!   before it. So a slow replica is given segments far ahead of the reader, in
//!   time to be ready when he gets there, and none at all where a fast one
//!   would be done sooner. Round-robin over 160, 100 and 40 MiB/s delivers 120.
//!   Whose node holds the segment goes first; who does not is asked where that
//!   is measurably sooner.
//! - [`health`], [`board`]: who may be asked at all; [`hedge`]: what is late, and
//!   whether a second replica may be asked for it.
//! - [`turns`]: in which order files are served.
//! - [`metadata`]: whom to ask for what is no file data.
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
pub mod board;
pub mod cached;
pub mod estimate;
pub mod health;
pub mod hedge;
mod late;
pub mod metadata;
pub mod pace;
mod probing;
pub mod turns;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};
use assign::{Assigner, Assignment, Demand};
use board::{HealthBoard, Silence};
use estimate::{Estimate, Limits, Sent};
use health::{HealthReading, HealthState, Heard, Proof};
use hedge::{HedgeBudget, Lateness};
use pace::{ByLocality, Locality};
use turns::Turns;

/// Names one attempt to read one segment from one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u64);

/// Names a segment that waits in the queue, and orders it: those that a reader
/// waits for come first, then the others; files in [`turns`], the segments of
/// one as they came. (Ordered by the distance from the reader when they came, a
/// window that is refilled in one go overtakes what had been wanted before it,
/// and the reader waits for that.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantId {
    /// `false` sorts first.
    ahead: bool,
    turn: u64,
    sequence: u64,
}

/// A segment that is wanted.
#[derive(Clone, Debug)]
pub struct Want<T> {
    /// What the owner knows it by.
    pub item: T,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is fetched ahead, and nobody waits for it yet.
    pub ahead: bool,
    /// Replicas that it may be read from.
    pub candidates: ReplicaSet,
    /// Who holds its chunk.
    pub holders: Holders,
    /// Replicas that it is pinned to: others are asked only where none of them
    /// can be. Empty where it is not pinned.
    pub pinned: ReplicaSet,
    /// Whether it is on its way from another replica, which is late.
    pub hedge: bool,
    /// Names the file that it belongs to.
    pub stream: u64,
    /// Its first byte there.
    pub start: u64,
    /// Replicas that have the file open; all where that does not matter.
    pub open: ReplicaSet,
}

impl<T> Want<T> {
    /// Whom to choose from while `usable` may be asked.
    /// None of those where reads of its file hang: one more would take a place and wait.
    fn choice(&self, usable: ReplicaSet, hung: &HungFiles) -> ReplicaSet {
        let hung = hung.get(&self.stream).copied().unwrap_or(ReplicaSet::EMPTY);
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

/// A decision: send this segment there. Finish it with [`Scheduler::finished`].
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
pub struct Ended {
    /// How long it took.
    pub took: Duration,
    /// How long it took to be served: the time since what came before it.
    /// `None` where it was too small to tell, or did not deliver.
    pub service: Option<Duration>,
    /// Whether the replica's node holds the segment.
    pub locality: Locality,
    /// Whether it was a second read of what was late elsewhere.
    pub is_hedge: bool,
}

/// A segment that is later than it should be and may go to another replica too.
#[derive(Debug)]
pub struct Late<T> {
    /// The segment.
    pub item: T,
    /// Who is late with it.
    pub replica: ReplicaId,
    /// Whom to ask.
    pub candidates: ReplicaSet,
    /// The attempt that is late.
    attempt: AttemptId,
    /// What the second one is to cost.
    price: hedge::HedgePrice,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The replica delivered this many bytes.
    Delivered(u64),
    /// The replica failed.
    Failed,
    /// The replica or the object failed: a call on the replica's root decides which.
    Doubtful,
    /// It did not come to a read, and the replica is not to blame.
    Unused,
}

/// How the scheduler is set up; the same for all replicas but where named.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// How long an attempt may take before another replica is asked in any case.
    pub attempt_deadline: Duration,
    /// The replicas' names, for the log.
    pub names: ReplicaMap<String>,
    /// Whether a replica that was ejected has to prove itself, by
    /// [`Scheduler::proved`], before it is asked again.
    pub proofs: bool,
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
    sent: Sent,
    expected: Duration,
    /// Who else might have been sent it.
    others: ReplicaSet,
    /// Who of them holds a copy of it.
    copies: ReplicaSet,
    /// Whether others would read another copy of it.
    has_copies: bool,
    /// Whether a second replica has been asked since.
    hedged: bool,
    /// Whether it is a second one itself.
    is_hedge: bool,
    /// A probe that a reader waits for: another replica is asked after this
    /// time, which is paid for already.
    race_after: Option<Duration>,
    /// The segment: its file and its offset.
    segment: (u64, u64),
    /// Whether another replica has delivered the segment since.
    beaten: bool,
    /// Whether its replica's in-flight limit no longer counts it, so that an attempt
    /// that hangs does not keep other segments out.
    written_off: bool,
}

/// What `fanfs status` shows of one replica.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its health.
    pub health: HealthReading,
    /// The measured rate that the next decision will use, bytes a second.
    pub rate: ByLocality<f64>,
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
    policy: Policy,
    estimates: ReplicaMap<Estimate>,
    health: HealthBoard,
    lateness: ReplicaMap<Lateness>,
    hedges: HedgeBudget,
    queue: BTreeMap<WantId, Want<T>>,
    turns: Turns,
    /// In order, so that what is decided about them is the same in each run.
    attempts: BTreeMap<AttemptId, Attempt<T>>,
    assigner: Assigner<WantId>,
    /// Kept between rounds for its memory.
    decided: Vec<Assignment<WantId>>,
    sequence: u64,
    probed: Option<Instant>,
    /// Replicas that have not delivered anything for longer than an attempt may take.
    stuck: ReplicaSet,
    hung: HungFiles,
}

/// Files with the replicas on which reads of them hang.
type HungFiles = BTreeMap<u64, ReplicaSet>;

impl<T: Clone> Scheduler<T> {
    /// A scheduler with an empty queue.
    pub fn new(policy: Policy, replicas: ReplicaMap<ReplicaPolicy>, now: Instant) -> Self {
        let estimates = replicas.map(|_, replica| {
            let limits = Limits {
                segment: policy.segment,
                max_bytes: replica.max_in_flight,
                max_reads: replica.max_reads,
            };
            Estimate::new(replica.weight, limits, now)
        });
        Self {
            health: HealthBoard::new(policy.names.clone(), policy.proofs, now),
            lateness: replicas.map(|_, _| Lateness::default()),
            hedges: HedgeBudget::new(policy.segment, replicas.len()),
            policy,
            assigner: Assigner::new(estimates.len()),
            estimates,
            queue: BTreeMap::new(),
            turns: Turns::default(),
            attempts: BTreeMap::new(),
            decided: Vec::new(),
            sequence: 0,
            probed: None,
            stuck: ReplicaSet::EMPTY,
            hung: HungFiles::new(),
        }
    }

    /// Puts a segment into the queue.
    pub fn want(&mut self, want: Want<T>) -> WantId {
        self.sequence += 1;
        // A second read of what is late was paid for with the first.
        let turn = match want.hedge {
            true => self.turns.at_once(),
            false => self.turns.take(want.stream, want.bytes),
        };
        let id = WantId { ahead: want.ahead, turn, sequence: self.sequence };
        self.queue.insert(id, want);
        id
    }

    /// Moves a waiting segment to the front: a reader has reached it. Nothing
    /// happens where it has been sent already.
    pub fn hurry(&mut self, id: WantId) -> Option<WantId> {
        let mut want = self.queue.remove(&id)?;
        want.ahead = false;
        let id = WantId { ahead: false, ..id };
        self.queue.insert(id, want);
        Some(id)
    }

    /// Takes a segment out of the queue; `None` where it has been sent already.
    pub fn cancel(&mut self, id: WantId) -> Option<Want<T>> {
        let want = self.queue.remove(&id)?;
        if !want.hedge {
            self.turns.give_back(want.stream, want.bytes);
        }
        Some(want)
    }

    /// What is fetched ahead and waits, the least urgent first.
    pub fn ahead(&self) -> impl Iterator<Item = &Want<T>> {
        self.queue.values().rev().take_while(|want| want.ahead)
    }

    /// Decides what to send now, appending to `out`.
    pub fn next(&mut self, now: Instant, out: &mut Vec<Dispatch<T>>) {
        if self.queue.is_empty() {
            return;
        }
        let usable = self.usable(now);
        // The last one is not ejected, but it may hang: what waits for its room would
        // wait until it heals, while one that is ejected may be back.
        let usable =
            if usable.minus(self.stuck).is_empty() { self.estimates.all() } else { usable };
        let loads = self.loads(now);
        // Where the others take whatever is wanted at once, nothing is left for it
        // afterwards. What is small would tell nothing.
        let tells = |id: &WantId, want: &Want<T>| id.ahead && want.bytes * 2 > self.policy.segment;
        if self.queue.last_key_value().is_some_and(|(id, want)| tells(id, want)) {
            self.probe(usable, now, out);
        }
        if self.probe_alone(usable, &loads, now, out) {
            return;
        }
        let demands = self.queue.iter().map(|(id, want)| {
            let demand = Demand {
                bytes: want.bytes,
                candidates: want.choice(usable, &self.hung),
                holders: want.holders,
                ahead: want.ahead,
                stream: want.stream,
                start: want.start,
                open: want.open,
            };
            (*id, demand)
        });
        let mut decided = std::mem::take(&mut self.decided);
        self.assigner.assign(demands, &loads, &mut decided);
        for Assignment { key, replica, expected, .. } in decided.drain(..) {
            let want = self.queue.remove(&key).expect("assigned segments come from the queue");
            self.turns.sent(key.turn);
            out.push(self.send(want, replica, Duration::from_secs_f64(expected), now));
        }
        self.decided = decided;
        self.probe(usable, now, out);
    }

    fn send(
        &mut self,
        want: Want<T>,
        replica: ReplicaId,
        expected: Duration,
        now: Instant,
    ) -> Dispatch<T> {
        self.sequence += 1;
        let attempt = AttemptId(self.sequence);
        let locality = want.locality(replica);
        let sent = Sent { at: now, bytes: want.bytes, locality };
        self.estimates[replica].sent(sent);
        self.assigner.sent(replica, want.stream, want.start.saturating_add(want.bytes));
        let segment = (want.stream, want.start);
        let Want { item, bytes, candidates, hedge, holders, .. } = want;
        let others = candidates.minus(ReplicaSet::EMPTY.with(replica));
        let copies = others.and(holders.local);
        let mut state = Attempt {
            item: item.clone(),
            replica,
            sent,
            expected,
            others,
            copies,
            has_copies: holders.spare || !copies.is_empty(),
            hedged: false,
            is_hedge: hedge,
            race_after: None,
            segment,
            beaten: false,
            written_off: false,
        };
        // One that is tried again is to cost nobody anything.
        if self.health.state(replica) == HealthState::Probing {
            state.race_after = self.race_after(state.others, state.sent.bytes, now);
        }
        self.attempts.insert(attempt, state);
        Dispatch { attempt, item, bytes, replica, locality }
    }

    /// An attempt ended. Call [`Scheduler::next`] afterwards: there is room now.
    /// `None` where there is no such attempt.
    pub fn finished(
        &mut self,
        attempt: AttemptId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Ended> {
        let attempt = self.attempts.remove(&attempt)?;
        let replica = attempt.replica;
        if matches!(outcome, Outcome::Delivered(_)) && (attempt.is_hedge || attempt.hedged) {
            let same = self.attempts.values_mut().filter(|a| a.segment == attempt.segment);
            same.for_each(|other| other.beaten = true);
        }
        let estimate = &mut self.estimates[replica];
        let took = now.saturating_duration_since(attempt.sent.at);
        let mut service = None;
        match outcome {
            Outcome::Delivered(bytes)
                if attempt.written_off
                    || self.health.was_ejected_since(replica, attempt.sent.at) =>
            {
                estimate.outlived(now, attempt.sent);
                self.hedges.earn(bytes);
                self.health.delivered(replica, now);
            }
            Outcome::Delivered(bytes) => {
                service = estimate.completed(now, attempt.sent, bytes);
                self.lateness[replica].add(took, attempt.expected);
                self.hedges.earn(bytes);
                if service.is_some() {
                    let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
                    let best = self.best_but(replica, now);
                    self.health.delivered_at(replica, rate, best, now);
                } else {
                    self.health.delivered(replica, now);
                }
            }
            Outcome::Failed => {
                estimate.dropped(now, attempt.sent);
                self.health.failed(replica, now);
            }
            Outcome::Doubtful => {
                estimate.dropped(now, attempt.sent);
                self.health.doubted(replica, now);
            }
            Outcome::Unused => estimate.dropped(now, attempt.sent),
        }
        let (locality, is_hedge) = (attempt.sent.locality, attempt.is_hedge);
        Some(Ended { took, service, locality, is_hedge })
    }

    /// What the best of the other replicas delivers, bytes a second, as far as that
    /// was measured.
    fn best_but(&self, replica: ReplicaId, now: Instant) -> f64 {
        let others = self.estimates.iter().filter(|(id, _)| *id != replica);
        others.filter_map(|(_, estimate)| estimate.comparable(now)).fold(0.0, f64::max)
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
    pub fn standings(&self, now: Instant) -> ReplicaMap<Standing> {
        self.estimates.map(|id, estimate| {
            let load = estimate.load(now);
            Standing {
                health: self.health.reading(id, now),
                rate: load.rate,
                is_measured: estimate.comparable(now).is_some(),
                latency: Duration::from_secs_f64(load.latency.local.min(load.latency.remote)),
                in_flight: load.in_flight,
                cap: load.cap,
            }
        })
    }

    /// What a replica delivers over a long time, where there is enough to tell.
    pub fn steady(&self, replica: ReplicaId) -> ByLocality<Option<f64>> {
        self.estimates[replica].steady()
    }

    /// A call outside the read path (an open, a lookup) told something about a
    /// replica's health.
    pub fn heard(&mut self, replica: ReplicaId, heard: Heard, now: Instant) {
        match heard {
            Heard::Well => self.health.delivered(replica, now),
            Heard::Late => self.health.late(replica, now),
            Heard::Failed => {
                // It may be the object that hangs: the replica's root decides.
                self.health.late(replica, now);
                self.health.doubted(replica, now);
            }
            Heard::Doubtful => self.health.doubted(replica, now),
        }
    }

    /// Replicas that may be asked; all of them where none should be.
    pub fn usable(&mut self, now: Instant) -> ReplicaSet {
        self.health.usable(now)
    }

    /// When the last of these replicas delivered something.
    pub fn last_delivery(&self, of: ReplicaSet) -> Option<Instant> {
        of.iter().filter_map(|id| self.estimates[id].last_delivery()).max()
    }

    /// Whether all replicas are asked as always.
    pub fn all_are_in(&self) -> bool {
        self.health.all_are_in()
    }

    /// Replicas that have failed or were late lately, and are asked.
    pub fn suspect(&self) -> ReplicaSet {
        self.health.suspect()
    }

    /// Suspect replicas that returned errors, but in time.
    pub fn refusing(&self) -> ReplicaSet {
        self.health.refusing()
    }

    /// Replicas that are to prove that they are the mounts that they were; see
    /// [`Policy::proofs`].
    pub fn to_prove(&mut self, now: Instant) -> ReplicaSet {
        self.health.to_prove(now)
    }

    /// What came of a proof.
    pub fn proved(&mut self, replica: ReplicaId, proof: Proof, now: Instant) {
        self.health.proved(replica, proof, now);
    }

    /// Whether any replica of a set answers; see [`HealthBoard::silence`].
    pub fn silence(&mut self, of: ReplicaSet, now: Instant) -> Silence {
        self.health.silence(of, now)
    }

    /// A replica has not been in service yet, and is being examined;
    /// [`Scheduler::proved`] reports the result.
    pub fn expected(&mut self, replica: ReplicaId, now: Instant) {
        self.health.expected(replica, now);
    }

    /// A replica's mount has gone from its place.
    pub fn gone(&mut self, replica: ReplicaId, now: Instant) {
        self.health.gone(replica, now);
    }

    /// Something was mounted or unmounted somewhere: absent replicas may be back.
    pub fn mounts_changed(&mut self, now: Instant) {
        self.health.mounts_changed(now);
    }

    fn loads(&mut self, now: Instant) -> ReplicaMap<estimate::Load> {
        // One that has delivered nothing yet is taken for as good as the best,
        // by weight: that is how it gets to show what it can do.
        let best = self
            .estimates
            .iter()
            .filter_map(|(_, estimate)| Some(estimate.measured(now)? / estimate.weight()))
            .fold(0.0, f64::max);
        if best > 0.0 {
            for (_, estimate) in self.estimates.iter_mut() {
                estimate.suppose(best * estimate.weight());
            }
        }
        self.estimates.map(|id, estimate| {
            let mut load = estimate.load(now);
            if self.health.state(id) == HealthState::Probing {
                // One attempt at a time shows whether it is back.
                load.cap = 1;
            }
            load
        })
    }
}
