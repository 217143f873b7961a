//! Which replica reads which segment, and when.
//!
//! Segments that are wanted wait in one queue for the whole volume, the most
//! urgent first. Whenever something changed (a segment was wanted, one came
//! back, time passed) the owner asks [`Scheduler::next`] what to send where.
//! Pure parts answer:
//!
//! - [`estimate`]: how fast each replica delivers, measured apart for segments
//!   that its node holds and for others ([`pace`]); how long its reads take at
//!   least; how much is in flight to it.
//! - [`assign`]: each waiting segment goes to the replica that is expected to
//!   complete it first, counting what is in flight there *and* what waits
//!   before it. So a slow replica is given segments far ahead of the reader, in
//!   time to be ready when he gets there, and none at all where a fast one
//!   would be done sooner. Round-robin over 160, 100 and 40 MiB/s delivers 120.
//!   Whose node holds the segment goes first; who does not is asked where that
//!   is measurably sooner.
//! - [`health`]: who may be asked at all; [`hedge`]: what is late, and whether a
//!   second replica may be asked for it.
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
pub mod estimate;
pub mod health;
pub mod hedge;
pub mod metadata;
pub mod pace;
pub mod turns;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};
use assign::{Assigner, Assignment, Demand};
use estimate::{Estimate, Limits, Sent};
use health::{Health, HealthState};
use hedge::HedgeBudget;
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
    fn choice(&self, usable: ReplicaSet) -> ReplicaSet {
        // A segment whose candidates are all ejected is better tried than
        // failed: the last replica is never ejected.
        let healthy = self.candidates.and(usable);
        let left = if healthy.is_empty() { self.candidates } else { healthy };
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
}

/// A segment that is later than it should be and may go to another replica too.
#[derive(Debug)]
pub struct Late<T> {
    /// The segment.
    pub item: T,
    /// Who is late with it.
    pub replica: ReplicaId,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The replica delivered this many bytes.
    Delivered(u64),
    /// The replica failed.
    Failed,
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
}

/// A replica that was not asked for so long is probed with a real segment.
/// Often enough that a recovered replica is used again within seconds, seldom
/// enough that one a hundred times too slow costs no more than the odd hedge.
const PROBE_AFTER: Duration = Duration::from_secs(2);

/// The same with a segment that its node does not hold, if it has read such
/// before: that it is not asked for one is as it should be.
const PROBE_REMOTE_AFTER: Duration = Duration::from_secs(15);

/// Probes are this far apart, however many replicas there are: of 64 that are
/// idle because their nodes hold nothing of what is read, each would otherwise
/// fetch a segment from the nodes that do.
const BETWEEN_PROBES: Duration = Duration::from_millis(100);

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
    /// Whether others would read another copy of it.
    has_copies: bool,
    /// Whether a second replica has been asked since.
    hedged: bool,
    /// Whether it is a second one itself.
    is_hedge: bool,
    /// A probe that a reader waits for: another replica is asked after this
    /// time, which is paid for already.
    race_after: Option<Duration>,
}

/// What `fanfs status` shows of one replica.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its health.
    pub health: HealthState,
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
    health: ReplicaMap<Health>,
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
}

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
            health: replicas.map(|_, _| Health::default()),
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
        let loads = self.loads(now);
        if self.probe_alone(usable, &loads, now, out) {
            return;
        }
        let demands = self.queue.iter().map(|(id, want)| {
            let demand = Demand {
                bytes: want.bytes,
                candidates: want.choice(usable),
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

    /// Gives the least urgent waiting segment to a replica that has not been
    /// asked for a while, because it was slow: its estimate is old. If it still
    /// is, nobody is to wait for it longer than for another one.
    fn probe(&mut self, usable: ReplicaSet, now: Instant, out: &mut Vec<Dispatch<T>>) {
        if self.has_just_probed(now) {
            return;
        }
        for replica in usable.iter() {
            let Some(since) = self.estimates[replica].idle_since() else { continue };
            let idle = now.saturating_duration_since(since);
            let last = self.queue.last_entry();
            let Some(last) = last.filter(|last| last.get().choice(usable).contains(replica)) else {
                continue;
            };
            let estimate = &self.estimates[replica];
            let is_known = estimate.load(now).remote_is_measured;
            let patience = match last.get().locality(replica) {
                Locality::Remote if is_known => PROBE_REMOTE_AFTER,
                Locality::Remote | Locality::Local => PROBE_AFTER,
            };
            if idle < patience {
                continue;
            }
            let want = last.remove();
            let loads = want.candidates.iter().map(|id| (id, self.estimates[id].load(now)));
            let expected = loads
                .map(|(id, load)| load.completion(want.locality(id), load.work, want.bytes))
                .fold(f64::INFINITY, f64::min);
            out.push(self.send(want, replica, Duration::from_secs_f64(expected), now));
            self.probed = Some(now);
            return;
        }
    }

    fn has_just_probed(&self, now: Instant) -> bool {
        self.probed.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_PROBES)
    }

    /// The same where the only waiting segment is one that a reader waits for.
    /// Who reads single parts one after the other never has another one, and a
    /// replica whose first read was slow by accident would never be asked again.
    /// If it still is slow, another one is asked when it would have been done
    /// twice; true where a segment was sent.
    fn probe_alone(
        &mut self,
        usable: ReplicaSet,
        loads: &ReplicaMap<estimate::Load>,
        now: Instant,
        out: &mut Vec<Dispatch<T>>,
    ) -> bool {
        let Some((id, want)) = self.queue.first_key_value() else { return false };
        let is_alone = self.queue.len() == 1 && !want.ahead && !want.hedge;
        if !is_alone || self.has_just_probed(now) {
            return false;
        }
        let completion = |replica: ReplicaId| {
            let load = &loads[replica];
            load.completion(want.locality(replica), load.work, want.bytes)
        };
        // The best may be remote: that is how the only holder is left alone.
        let choice = want.choice(usable);
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
        let (id, bytes) = (*id, want.bytes);
        if !self.hedges.spend_spare(bytes) {
            return false;
        }
        let Some(want) = self.queue.remove(&id) else { return false };
        let dispatch = self.send(want, replica, expected, now);
        if let Some(attempt) = self.attempts.get_mut(&dispatch.attempt) {
            attempt.race_after = Some(race_after);
        }
        out.push(dispatch);
        self.probed = Some(now);
        true
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
        let Want { item, bytes, candidates, hedge, holders, .. } = want;
        let others = candidates.minus(ReplicaSet::EMPTY.with(replica));
        let state = Attempt {
            item: item.clone(),
            replica,
            sent,
            expected,
            others,
            has_copies: holders.spare || !others.and(holders.local).is_empty(),
            hedged: false,
            is_hedge: hedge,
            race_after: None,
        };
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
        let estimate = &mut self.estimates[attempt.replica];
        let health = &mut self.health[attempt.replica];
        let mut service = None;
        let change = match outcome {
            Outcome::Delivered(bytes) => {
                service = estimate.completed(now, attempt.sent, bytes);
                self.hedges.earn(bytes);
                health.delivered()
            }
            Outcome::Failed => {
                estimate.dropped(now, attempt.sent);
                health.failed(now)
            }
            Outcome::Unused => {
                estimate.dropped(now, attempt.sent);
                None
            }
        };
        self.note(attempt.replica, change);
        let took = now.saturating_duration_since(attempt.sent.at);
        Some(Ended { took, service, locality: attempt.sent.locality })
    }

    /// What is late and may be asked of another replica as well; each attempt
    /// once. Call it every few dozen milliseconds while anything is in flight.
    pub fn late(&mut self, now: Instant, out: &mut Vec<Late<T>>) {
        let mut stalled = ReplicaSet::EMPTY;
        for attempt in self.attempts.values_mut() {
            let age = now.saturating_duration_since(attempt.sent.at);
            let expired = age >= self.policy.attempt_deadline;
            let late = expired || hedge::is_late(age, attempt.expected);
            let raced = attempt.race_after.is_some_and(|after| age >= after);
            if !late && !raced {
                continue;
            }
            let delivered_since = |id: ReplicaId| {
                self.estimates[id].last_delivery().is_some_and(|last| last > attempt.sent.at)
            };
            let silent =
                !delivered_since(attempt.replica) && attempt.others.iter().any(delivered_since);
            // Where the replica's node does not hold the segment, the one that
            // does may be to blame. A deadline counts once; silence for as long
            // as it lasts.
            if late
                && attempt.sent.locality == Locality::Local
                && (silent || expired && !attempt.hedged && !attempt.is_hedge)
            {
                stalled = stalled.with(attempt.replica);
            }
            if attempt.hedged || attempt.others.is_empty() {
                continue;
            }
            // What made two replicas late may be what is behind both; a third
            // would make it worse. But nobody waits for two that hang.
            let bytes = attempt.sent.bytes;
            let may = match (attempt.is_hedge, expired) {
                _ if raced => true,
                (false, true) => true,
                (false, false) if silent => self.hedges.overdraw(bytes),
                // A replica that is slow and at work would get the same read
                // twice, were there no other copy.
                (false, false) => {
                    (attempt.has_copies || !delivered_since(attempt.replica))
                        && self.hedges.spend(bytes)
                }
                (true, true) => silent,
                (true, false) => false,
            };
            if !may {
                continue;
            }
            attempt.hedged = true;
            out.push(Late { item: attempt.item.clone(), replica: attempt.replica });
        }
        for replica in stalled.iter() {
            let change = self.health[replica].stalled(now);
            self.note(replica, change);
        }
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
                health: self.health[id].state(),
                rate: load.rate,
                is_measured: estimate.measured(now).is_some(),
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
    pub fn heard(&mut self, replica: ReplicaId, well: bool, now: Instant) {
        let health = &mut self.health[replica];
        let change = if well { health.delivered() } else { health.failed(now) };
        self.note(replica, change);
    }

    /// Replicas that may be asked; all of them where none should be.
    pub fn usable(&mut self, now: Instant) -> ReplicaSet {
        let mut usable = ReplicaSet::EMPTY;
        for id in self.health.ids() {
            let change = self.health[id].elapsed(now);
            self.note(id, change);
            if self.health[id].is_usable() {
                usable = usable.with(id);
            }
        }
        if usable.is_empty() { self.health.all() } else { usable }
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
            if self.health[id].state() == HealthState::Probing {
                // One attempt at a time shows whether it is back.
                load.cap = 1;
            }
            load
        })
    }

    fn note(&self, replica: ReplicaId, change: Option<health::Change>) {
        if let Some((from, to, reason)) = change {
            let name = &self.policy.names[replica];
            tracing::warn!(replica = %name, ?from, ?to, ?reason, "health changed");
        }
    }
}
