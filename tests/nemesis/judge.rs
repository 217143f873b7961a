//! The result of every call, and whether it was allowed.
//!
//! - While some replica is healthy from a call's start to its end, the call succeeds within the
//!   judge's bound, for each request that it consists of.
//! - Otherwise it ends by the deadline plus a tenth. The time starts once the requests queued
//!   before it were answered, for which it may wait as long. It ends with its bytes, or with an
//!   errno that docs/SEMANTICS.md names.
//! - Bytes are always right.
//!
//! A machine that does not run this process makes everything late. A thread that only sleeps
//! measures how late ([`Machine`]). The limits allow [`HOPS`] times that delay, because a call is
//! handed from thread to thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;

use crate::machine::{HOPS, Machine};
use crate::schedule::Schedule;
use crate::world::DEADLINE;

/// A heal may take this long after its scheduled time, plus the machine's delay.
const HEALING: Duration = Duration::from_millis(100);

/// The errnos that docs/SEMANTICS.md allows while no replica is healthy: EIO, ETIMEDOUT, ESTALE,
/// and the replica's own. A FUSE replica answers ENOTCONN once its server has died, and
/// ECONNABORTED to the calls that were in flight then.
const DOCUMENTED: [i32; 5] = [5, 110, 116, 107, 103];

/// The kind of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// Requests that it consists of, one after the other.
    pub(crate) requests: u32,
    /// It may fail although some replica is healthy: the one that it needs may not be.
    pub(crate) may_fail: bool,
    /// The time within which each of its requests ends.
    pub(crate) deadline: Duration,
    /// Whether it counts as a read in the report.
    pub(crate) is_read: bool,
}

impl Call {
    pub(crate) fn read(name: &'static str) -> Self {
        Self { name, requests: 1, may_fail: false, deadline: DEADLINE, is_read: true }
    }

    pub(crate) fn other(name: &'static str, requests: u32) -> Self {
        Self { is_read: false, requests, ..Self::read(name) }
    }

    pub(crate) fn or_fail(self, may_fail: bool) -> Self {
        Self { may_fail, ..self }
    }

    pub(crate) fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

/// A worker's current call.
#[derive(Clone, Copy)]
struct Pending {
    call: Call,
    since: Duration,
}

/// A worker's place in the judge's list.
#[derive(Clone, Copy)]
pub(crate) struct Seat(usize);

/// Sums for one state of the replicas.
struct Sums {
    reads: u64,
    others: u64,
    failed: u64,
    times: Histogram<u64>,
}

impl Default for Sums {
    fn default() -> Self {
        let times = Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("sound bounds");
        Self { reads: 0, others: 0, failed: 0, times }
    }
}

pub(crate) struct Judge {
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    bound: Duration,
    grace: Duration,
    started: Instant,
    pub(crate) over: AtomicBool,
    pending: Mutex<Vec<Option<Pending>>>,
    sums: Mutex<BTreeMap<&'static str, Sums>>,
    violations: Mutex<Vec<String>>,
    bytes: AtomicU64,
    wrong: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
    pub(crate) machine: Machine,
}

impl Judge {
    pub(crate) fn new(seed: u64, schedule: Schedule, bound: Duration) -> Self {
        Self {
            seed,
            schedule,
            bound,
            grace: Duration::ZERO,
            started: Instant::now(),
            over: AtomicBool::new(false),
            pending: Mutex::default(),
            sums: Mutex::default(),
            violations: Mutex::default(),
            bytes: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            late: AtomicU64::new(0),
            machine: Machine::new(),
        }
    }

    /// Gives calls that may fail this much more time, for the restart of a daemon.
    pub(crate) fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Time since the start, which is also the schedule's.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    pub(crate) fn seat(&self) -> Seat {
        let mut pending = self.pending.lock();
        pending.push(None);
        Seat(pending.len() - 1)
    }

    /// Makes a call and judges its result; returns its value if it succeeded.
    pub(crate) fn make<T>(
        &self,
        seat: Seat,
        call: Call,
        make: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let from = self.now();
        self.pending.lock()[seat.0] = Some(Pending { call, since: from });
        let result = make();
        self.pending.lock()[seat.0] = None;
        let until = self.now();
        self.ended(call, from, until, result.as_ref().err());
        result.ok()
    }

    fn ended(&self, call: Call, from: Duration, until: Duration, error: Option<&io::Error>) {
        let took = until - from;
        {
            let mut sums = self.sums.lock();
            let sums = sums.entry(self.schedule.state(from)).or_default();
            *(if call.is_read { &mut sums.reads } else { &mut sums.others }) += 1;
            sums.failed += u64::from(error.is_some());
            sums.times.saturating_record(took.as_micros().max(1) as u64);
        }
        // A replica may still be broken for a moment after its episode.
        let since = from.saturating_sub(HEALING + self.machine.late(from, until) * HOPS);
        let spared = self.schedule.spares(since, until.min(from + self.bound * call.requests));
        let must_succeed = spared && !call.may_fail;
        let limit = self.limit(call, must_succeed, from, until);
        if took > limit {
            self.late.fetch_add(1, SeqCst);
            self.note(format!("{} took {took:.3?}, {limit:.3?} at most", call.name), from);
        }
        let Some(error) = error else { return };
        let is_documented = error.raw_os_error().is_some_and(|raw| DOCUMENTED.contains(&raw));
        if must_succeed || !is_documented {
            self.failed.fetch_add(1, SeqCst);
            self.note(format!("{} failed after {took:.3?}: {error}", call.name), from);
        }
    }

    /// The longest time that a call may take.
    fn limit(&self, call: Call, must_succeed: bool, from: Duration, until: Duration) -> Duration {
        let each = if must_succeed { self.bound } else { call.deadline.mul_f64(2.1) + self.grace };
        each * call.requests + self.machine.late(from, until) * HOPS
    }

    /// The correct bytes that were read, or the error in them.
    pub(crate) fn bytes(&self, result: Result<u64, String>) {
        match result {
            Ok(bytes) => {
                self.bytes.fetch_add(bytes, SeqCst);
            }
            Err(text) => {
                self.wrong.fetch_add(1, SeqCst);
                self.note(text, self.now());
            }
        }
    }

    /// A violation.
    pub(crate) fn note(&self, text: String, at: Duration) {
        let state = self.schedule.state(at);
        let text = format!("seed {}, {:.3} s ({state}): {text}", self.seed, at.as_secs_f64());
        let mut violations = self.violations.lock();
        if violations.len() < 50 {
            eprintln!("VIOLATION {text}");
            violations.push(text);
        }
    }

    /// Looks for calls that should have ended; `false` if one apparently never will.
    pub(crate) fn look(&self) -> bool {
        let now = self.now();
        let pending: Vec<Pending> = self.pending.lock().iter().flatten().copied().collect();
        pending.iter().all(|Pending { call, since }| {
            let limit = self.limit(*call, false, *since, now);
            let lost = now.saturating_sub(*since) > 2 * limit + Duration::from_secs(5);
            if lost {
                self.note(format!("{} does not end", call.name), *since);
            }
            !lost
        })
    }

    pub(crate) fn report(&self) -> Report {
        let state = |(state, sums): (&&'static str, &Sums)| {
            let us = |q| sums.times.value_at_quantile(q);
            let times_us = [us(0.5), us(0.99), sums.times.max()];
            let Sums { reads, others, failed, .. } = *sums;
            (*state, State { reads, others, failed, times_us })
        };
        let states: BTreeMap<_, _> = self.sums.lock().iter().map(state).collect();
        Report {
            reads: states.values().map(|state| state.reads).sum(),
            others: states.values().map(|state| state.others).sum(),
            bytes: self.bytes.load(SeqCst),
            wrong: self.wrong.load(SeqCst),
            failed: self.failed.load(SeqCst),
            failed_as_documented: states.values().map(|state| state.failed).sum::<u64>()
                - self.failed.load(SeqCst),
            late: self.late.load(SeqCst),
            machine_late_us: self.machine.worst().as_micros() as u32,
            states,
            violations: self.violations.lock().clone(),
        }
    }
}

/// The result of a round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) reads: u64,
    pub(crate) others: u64,
    pub(crate) bytes: u64,
    pub(crate) wrong: u64,
    /// Calls that failed although they were not allowed to.
    pub(crate) failed: u64,
    pub(crate) failed_as_documented: u64,
    pub(crate) late: u64,
    /// The machine's largest delay of a ready thread.
    pub(crate) machine_late_us: u32,
    /// By the replicas' state when they started.
    pub(crate) states: BTreeMap<&'static str, State>,
    pub(crate) violations: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct State {
    pub(crate) reads: u64,
    pub(crate) others: u64,
    pub(crate) failed: u64,
    /// Median, 99 % and longest.
    pub(crate) times_us: [u64; 3],
}
