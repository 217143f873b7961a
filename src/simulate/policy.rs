//! Who decides: fanfs's scheduler, or something simpler to compare it with.
//!
//! All see the same queue of segments, the same replicas with as many reads in
//! flight at most, and are told of the same completions. The simpler ones know
//! nothing of rates and never ask twice.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::scheduler::{AttemptId, Ended, Policy, ReplicaPolicy, Scheduler, Want};
use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// fanfs's own scheduler.
    Fanfs,
    /// One replica after the other.
    RoundRobin,
    /// The replica on the first node that is named for the chunk.
    FirstHost,
    /// Whoever has the least in flight.
    LeastInFlight,
}

impl PolicyKind {
    /// All of them, the one to beat the others last.
    pub const ALL: [Self; 4] =
        [Self::RoundRobin, Self::FirstHost, Self::LeastInFlight, Self::Fanfs];

    /// As it is written in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fanfs => "fanfs",
            Self::RoundRobin => "round-robin",
            Self::FirstHost => "first-host",
            Self::LeastInFlight => "least-in-flight",
        }
    }
}

/// A segment on its way: an index into the engine's list.
pub(super) type Job = usize;

/// A segment that is wanted, as policies see it.
pub(super) struct Wanted {
    pub(super) job: Job,
    pub(super) bytes: u64,
    pub(super) ahead: bool,
    pub(super) hedge: bool,
    pub(super) candidates: ReplicaSet,
    pub(super) holders: Option<Holders>,
    /// The replica on the first node named.
    pub(super) first: Option<ReplicaId>,
    pub(super) stream: u64,
    pub(super) start: u64,
}

/// Names an attempt, to the policy that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attempt {
    Own(AttemptId),
    Plain(u64),
}

pub(super) struct Sent {
    pub(super) attempt: Attempt,
    pub(super) job: Job,
    pub(super) replica: ReplicaId,
}

pub(super) enum Chooser {
    Fanfs(Box<Scheduler<Job>>),
    Plain(Plain),
}

impl Chooser {
    pub(super) fn new(
        kind: PolicyKind,
        names: ReplicaMap<String>,
        segment: u64,
        limits: &ReplicaPolicy,
        now: Instant,
    ) -> Self {
        let replicas = names.len();
        if kind == PolicyKind::Fanfs {
            let attempt_deadline = Duration::from_secs(5);
            let policy = Policy { segment, attempt_deadline, names, proofs: false };
            let limits = ReplicaMap::from_fn(replicas, |_| limits.clone());
            return Self::Fanfs(Box::new(Scheduler::new(policy, limits, now)));
        }
        Self::Plain(Plain {
            kind,
            queue: VecDeque::new(),
            in_flight: ReplicaMap::from_fn(replicas, |_| 0),
            attempts: BTreeMap::new(),
            max_reads: limits.max_reads,
            sequence: 0,
            turn: 0,
        })
    }

    pub(super) fn want(&mut self, wanted: Wanted) {
        match self {
            Self::Fanfs(scheduler) => {
                scheduler.want(Want {
                    item: wanted.job,
                    bytes: wanted.bytes,
                    ahead: wanted.ahead,
                    candidates: wanted.candidates,
                    holders: wanted.holders.unwrap_or(Holders::UNKNOWN),
                    pinned: ReplicaSet::EMPTY,
                    hedge: wanted.hedge,
                    stream: wanted.stream,
                    start: wanted.start,
                    open: wanted.candidates,
                });
            }
            Self::Plain(plain) => plain.want(wanted),
        }
    }

    pub(super) fn next(&mut self, now: Instant, out: &mut Vec<Sent>) {
        match self {
            Self::Fanfs(scheduler) => {
                let mut dispatches = Vec::new();
                scheduler.next(now, &mut dispatches);
                out.extend(dispatches.into_iter().map(|dispatch| Sent {
                    attempt: Attempt::Own(dispatch.attempt),
                    job: dispatch.item,
                    replica: dispatch.replica,
                }));
            }
            Self::Plain(plain) => plain.next(out),
        }
    }

    /// An attempt delivered; says how it was served, where the policy knows.
    pub(super) fn finished(&mut self, attempt: Attempt, bytes: u64, now: Instant) -> Option<Ended> {
        match (self, attempt) {
            (Self::Fanfs(scheduler), Attempt::Own(attempt)) => {
                scheduler.finished(attempt, crate::scheduler::Outcome::Delivered(bytes), now)
            }
            (Self::Plain(plain), attempt) => {
                if let Some(replica) = plain.attempts.remove(&attempt) {
                    plain.in_flight[replica] -= 1;
                }
                None
            }
            (Self::Fanfs(_), Attempt::Plain(_)) => None,
        }
    }

    /// The jobs that are late, and which other replicas may be asked for them.
    pub(super) fn late(
        &mut self,
        now: Instant,
        is_awaited: impl Fn(&Job) -> bool,
    ) -> Vec<(Job, ReplicaSet)> {
        let Self::Fanfs(scheduler) = self else { return Vec::new() };
        let mut late = Vec::new();
        scheduler.late(now, is_awaited, &mut late);
        late.into_iter().map(|late| (late.item, late.candidates)).collect()
    }

    /// Whether anything waits or is in flight.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Fanfs(scheduler) => scheduler.is_idle(),
            Self::Plain(plain) => plain.queue.is_empty() && plain.attempts.is_empty(),
        }
    }
}

pub(super) struct Plain {
    kind: PolicyKind,
    /// With the replica that each is bound to from the start.
    queue: VecDeque<(Wanted, Option<ReplicaId>)>,
    in_flight: ReplicaMap<usize>,
    attempts: BTreeMap<Attempt, ReplicaId>,
    max_reads: usize,
    sequence: u64,
    turn: usize,
}

impl Plain {
    fn want(&mut self, wanted: Wanted) {
        let bound = match self.kind {
            PolicyKind::LeastInFlight | PolicyKind::Fanfs => None,
            PolicyKind::FirstHost if wanted.first.is_some() => wanted.first,
            PolicyKind::FirstHost | PolicyKind::RoundRobin => {
                self.turn += 1;
                Some(ReplicaId::new((self.turn - 1) % self.in_flight.len()))
            }
        };
        self.queue.push_back((wanted, bound));
    }

    /// Sends from the front of the queue; those whose replica has no room keep
    /// waiting, and those behind them go on.
    fn next(&mut self, out: &mut Vec<Sent>) {
        let has_room =
            |in_flight: &ReplicaMap<usize>, id: ReplicaId| in_flight[id] < self.max_reads;
        let mut left = VecDeque::with_capacity(self.queue.len());
        while let Some((wanted, bound)) = self.queue.pop_front() {
            if !self.in_flight.ids().any(|id| has_room(&self.in_flight, id)) {
                left.push_back((wanted, bound));
                left.append(&mut self.queue);
                break;
            }
            let least = || wanted.candidates.iter().min_by_key(|id| self.in_flight[*id]);
            let chosen = bound.or_else(least).filter(|id| has_room(&self.in_flight, *id));
            let Some(replica) = chosen else {
                left.push_back((wanted, bound));
                continue;
            };
            self.sequence += 1;
            let attempt = Attempt::Plain(self.sequence);
            self.in_flight[replica] += 1;
            self.attempts.insert(attempt, replica);
            out.push(Sent { attempt, job: wanted.job, replica });
        }
        self.queue = left;
    }
}
