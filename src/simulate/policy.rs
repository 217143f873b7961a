//! The policies: fanfs's scheduler, and simpler ones to compare it with.
//!
//! All policies see the same queue of segments, the same replicas and the same limit on reads in
//! flight, and learn of the same completions. The simpler ones know no rates and never hedge.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::replicas::health_board::HealthBoard;
use crate::scheduler::{
    AttemptId, FinishedAttempt, ReplicaPolicy, Scheduler, SchedulerPolicy, SegmentNeed,
    SegmentRequest,
};
use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};

/// A policy for choosing a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// fanfs's own scheduler.
    Fanfs,
    /// The replicas in turn.
    RoundRobin,
    /// The replica on the first node that placement names for the chunk.
    FirstHost,
    /// The replica with the least in flight.
    LeastInFlight,
}

impl PolicyKind {
    /// All policies; fanfs's own is last.
    pub const ALL: [Self; 4] =
        [Self::RoundRobin, Self::FirstHost, Self::LeastInFlight, Self::Fanfs];

    /// The name in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fanfs => "fanfs",
            Self::RoundRobin => "round-robin",
            Self::FirstHost => "first-host",
            Self::LeastInFlight => "least-in-flight",
        }
    }
}

/// A segment to be fetched: an index into the engine's list.
pub(super) type JobId = usize;

/// A requested segment, as policies see it.
pub(super) struct JobRequest {
    pub(super) job: JobId,
    pub(super) bytes: u64,
    pub(super) is_readahead: bool,
    pub(super) is_hedge: bool,
    pub(super) candidates: ReplicaSet,
    pub(super) holders: Option<Holders>,
    /// The replica on the first node that placement names.
    pub(super) first_holder: Option<ReplicaId>,
    pub(super) reader_number: u64,
    pub(super) start: u64,
}

/// Identifies an attempt to the policy that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AttemptKey {
    Scheduler(AttemptId),
    Baseline(u64),
}

pub(super) struct SentJob {
    pub(super) attempt: AttemptKey,
    pub(super) job: JobId,
    pub(super) replica: ReplicaId,
}

pub(super) struct LateJob {
    pub(super) job: JobId,
    /// The other replicas that a hedge may use.
    pub(super) candidates: ReplicaSet,
}

pub(super) enum Dispatcher {
    Fanfs(Box<FanfsPolicy>),
    Baseline(BaselinePolicy),
}

impl Dispatcher {
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
            let policy = SchedulerPolicy { segment, attempt_deadline };
            let limits = ReplicaMap::from_fn(replicas, |_| limits.clone());
            return Self::Fanfs(Box::new(FanfsPolicy {
                scheduler: Scheduler::new(policy, limits, now),
                health: HealthBoard::new(names, false, now),
            }));
        }
        Self::Baseline(BaselinePolicy {
            kind,
            queue: VecDeque::new(),
            in_flight: ReplicaMap::from_fn(replicas, |_| 0),
            attempts: BTreeMap::new(),
            max_reads: limits.max_reads,
            sequence: 0,
            turn: 0,
        })
    }

    pub(super) fn enqueue(&mut self, wanted: JobRequest) {
        match self {
            Self::Fanfs(fanfs) => {
                fanfs.scheduler.enqueue(SegmentRequest {
                    item: wanted.job,
                    bytes: wanted.bytes,
                    is_readahead: wanted.is_readahead,
                    candidates: wanted.candidates,
                    holders: wanted.holders.unwrap_or(Holders::UNKNOWN),
                    pinned: ReplicaSet::EMPTY,
                    is_hedge: wanted.is_hedge,
                    file_number: wanted.reader_number,
                    start: wanted.start,
                    open_on: wanted.candidates,
                });
            }
            Self::Baseline(plain) => plain.enqueue(wanted),
        }
    }

    pub(super) fn schedule(&mut self, now: Instant, out: &mut Vec<SentJob>) {
        match self {
            Self::Fanfs(fanfs) => {
                let mut dispatches = Vec::new();
                fanfs.scheduler.schedule(&mut fanfs.health, now, &mut dispatches);
                out.extend(dispatches.into_iter().map(|dispatch| SentJob {
                    attempt: AttemptKey::Scheduler(dispatch.attempt),
                    job: dispatch.item,
                    replica: dispatch.replica,
                }));
            }
            Self::Baseline(plain) => plain.schedule(out),
        }
    }

    /// Records that an attempt delivered. Returns how it was served, if the policy knows.
    pub(super) fn attempt_finished(
        &mut self,
        attempt: AttemptKey,
        bytes: u64,
        now: Instant,
    ) -> Option<FinishedAttempt> {
        match (self, attempt) {
            (Self::Fanfs(fanfs), AttemptKey::Scheduler(attempt)) => {
                let outcome = crate::scheduler::AttemptOutcome::Delivered(bytes);
                fanfs.scheduler.attempt_finished(attempt, outcome, &mut fanfs.health, now)
            }
            (Self::Baseline(plain), attempt) => {
                if let Some(replica) = plain.attempts.remove(&attempt) {
                    plain.in_flight[replica] -= 1;
                }
                None
            }
            (Self::Fanfs(_), AttemptKey::Baseline(_)) => None,
        }
    }

    /// The jobs that are late; only fanfs's own policy looks for them.
    pub(super) fn find_late(
        &mut self,
        now: Instant,
        need: impl Fn(&JobId) -> SegmentNeed,
    ) -> Vec<LateJob> {
        let Self::Fanfs(fanfs) = self else { return Vec::new() };
        let mut late = Vec::new();
        fanfs.scheduler.find_late(&mut fanfs.health, now, need, &mut late);
        late.into_iter()
            .map(|late| LateJob { job: late.item, candidates: late.candidates })
            .collect()
    }

    /// Whether no job is waiting or in flight.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Fanfs(fanfs) => fanfs.scheduler.is_idle(),
            Self::Baseline(plain) => plain.queue.is_empty() && plain.attempts.is_empty(),
        }
    }
}

/// The daemon's own policy.
pub(super) struct FanfsPolicy {
    scheduler: Scheduler<JobId>,
    health: HealthBoard,
}

pub(super) struct BaselinePolicy {
    kind: PolicyKind,
    /// Each job, with the replica to which its policy bound it on arrival.
    queue: VecDeque<(JobRequest, Option<ReplicaId>)>,
    in_flight: ReplicaMap<usize>,
    attempts: BTreeMap<AttemptKey, ReplicaId>,
    max_reads: usize,
    sequence: u64,
    turn: usize,
}

impl BaselinePolicy {
    fn enqueue(&mut self, wanted: JobRequest) {
        let bound = match self.kind {
            PolicyKind::LeastInFlight | PolicyKind::Fanfs => None,
            PolicyKind::FirstHost if wanted.first_holder.is_some() => wanted.first_holder,
            PolicyKind::FirstHost | PolicyKind::RoundRobin => {
                self.turn += 1;
                Some(ReplicaId::new((self.turn - 1) % self.in_flight.len()))
            }
        };
        self.queue.push_back((wanted, bound));
    }

    /// Sends jobs from the front of the queue. A job whose replica has no room keeps waiting, and
    /// does not hold up the jobs behind it.
    fn schedule(&mut self, out: &mut Vec<SentJob>) {
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
            let attempt = AttemptKey::Baseline(self.sequence);
            self.in_flight[replica] += 1;
            self.attempts.insert(attempt, replica);
            out.push(SentJob { attempt, job: wanted.job, replica });
        }
        self.queue = left;
    }
}
