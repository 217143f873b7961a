//! Call times on each replica, and when a call is late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ChangeClass;
use crate::replicas::lateness::{LatenessHistogram, MAX_LATE_FACTOR};
use crate::replicas::metadata_order::{self, REMEASURE_EVERY};
use crate::volume::{ReplicaId, ReplicaMap};

/// A read's duration says how far its replica is from its usual times. A call is too short to
/// predict the next one that well. So a call is late after this many times the factor of a read
/// ([`LatenessHistogram`]), and not before [`crate::replicas::lateness::MIN_HEDGE_DELAY`].
const LATE_FACTOR: u32 = 2;

/// Above this latency, in microseconds, the replica's own threads make the calls. Two thread
/// switches take about ten microseconds.
const MAX_INLINE_US: u64 = 500;

/// The number of calls, and their smoothed time on each replica in microseconds; 0 if unknown.
pub(super) struct CallLatency {
    pub(super) calls: AtomicU64,
    start: Instant,
    /// When each was last asked or answered, microseconds from `start`.
    last_used: ReplicaMap<AtomicU64>,
    smoothed_us: ReplicaMap<AtomicU64>,
    /// The same of calls that were alone.
    unloaded: SmoothedLatency,
    /// When each last answered, microseconds from `start`.
    last_answer: ReplicaMap<AtomicU64>,
    lateness: ReplicaMap<Mutex<LatenessHistogram>>,
}

impl CallLatency {
    pub(super) fn new(replicas: usize) -> Self {
        Self {
            calls: AtomicU64::new(0),
            start: Instant::now(),
            last_used: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            smoothed_us: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            unloaded: SmoothedLatency::new(replicas),
            last_answer: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            lateness: ReplicaMap::from_fn(replicas, |_| Mutex::default()),
        }
    }

    pub(super) fn latency_us(&self, replica: ReplicaId) -> u64 {
        self.smoothed_us[replica].load(Ordering::Relaxed)
    }

    pub(super) fn unloaded_us(&self, replica: ReplicaId) -> u64 {
        self.unloaded.us(replica)
    }

    /// Whether a session thread may make a call itself: the replica answers so soon that a thread
    /// switch would matter.
    pub(super) fn is_quick(&self, replica: ReplicaId) -> bool {
        (1..=MAX_INLINE_US).contains(&self.latency_us(replica))
    }

    pub(super) fn latencies_us(&self) -> ReplicaMap<u64> {
        self.smoothed_us.map(|_, time| time.load(Ordering::Relaxed))
    }

    /// How long a replica has not been asked.
    pub(super) fn idle_time(&self, replica: ReplicaId) -> Duration {
        let asked = Duration::from_micros(self.last_used[replica].load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(asked)
    }

    pub(super) fn record_use(&self, replica: ReplicaId) {
        self.last_used[replica].store(self.start.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Whether a replica has answered nothing since `at`.
    pub(super) fn is_unresponsive_since(&self, replica: ReplicaId, at: Instant) -> bool {
        let at = at.saturating_duration_since(self.start).as_micros() as u64;
        self.last_answer[replica].load(Ordering::Relaxed) <= at
    }

    /// How long a call on a replica may take before it is late, and at least `least`.
    pub(super) fn late_after(&self, replica: ReplicaId, least: Duration) -> Duration {
        let usual = Duration::from_micros(self.latency_us(replica)) * LATE_FACTOR;
        // A quick replica's calls need no other look.
        if usual * MAX_LATE_FACTOR.ceil() as u32 <= least {
            return least;
        }
        usual.mul_f64(self.lateness[replica].lock().late_factor()).max(least)
    }

    /// Records also that no other call was in flight to the replica when this one was sent.
    pub(super) fn record_alone(&self, replica: ReplicaId, time: Duration) {
        self.unloaded.record(replica, time);
    }

    pub(super) fn record(&self, replica: ReplicaId, time: Duration) {
        let now = self.start.elapsed().as_micros() as u64;
        self.last_used[replica].store(now, Ordering::Relaxed);
        self.last_answer[replica].fetch_max(now, Ordering::Relaxed);
        let smoothed = &self.smoothed_us[replica];
        let mean = smoothed.load(Ordering::Relaxed);
        if mean > 0 {
            self.lateness[replica].lock().add(time, Duration::from_micros(mean));
        }
        // A lost update loses only one sample.
        smoothed.store(
            metadata_order::smoothed_latency(mean, time.as_micros() as u64),
            Ordering::Relaxed,
        );
    }
}

/// The smoothed times of one kind of call on each replica, microseconds; 0 if unknown.
struct SmoothedLatency(ReplicaMap<AtomicU64>);

impl SmoothedLatency {
    fn new(replicas: usize) -> Self {
        Self(ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)))
    }

    fn us(&self, replica: ReplicaId) -> u64 {
        self.0[replica].load(Ordering::Relaxed)
    }

    /// A lost update loses only one sample.
    fn record(&self, replica: ReplicaId, time: Duration) {
        let mean = metadata_order::smoothed_latency(self.us(replica), time.as_micros() as u64);
        self.0[replica].store(mean, Ordering::Relaxed);
    }
}

/// The times of changes inside their replica, by class. A replica may answer queries from its cache
/// and ask its server about each change.
pub(super) struct ChangeLatency {
    names: SmoothedLatency,
    data: SmoothedLatency,
    flush: SmoothedLatency,
}

impl ChangeLatency {
    pub(super) fn new(replicas: usize) -> Self {
        let unknown = || SmoothedLatency::new(replicas);
        Self { names: unknown(), data: unknown(), flush: unknown() }
    }

    fn of(&self, class: ChangeClass) -> Option<&SmoothedLatency> {
        match class {
            ChangeClass::Names => Some(&self.names),
            ChangeClass::Data => Some(&self.data),
            ChangeClass::Flush => Some(&self.flush),
            ChangeClass::Long => None,
        }
    }

    /// Whether a session thread may make a change of this class itself.
    pub(super) fn is_quick(&self, replica: ReplicaId, class: ChangeClass) -> bool {
        self.of(class).is_some_and(|times| (1..=MAX_INLINE_US).contains(&times.us(replica)))
    }

    pub(super) fn record(&self, replica: ReplicaId, class: ChangeClass, time: Duration) {
        if let Some(times) = self.of(class) {
            times.record(replica, time);
        }
    }
}

/// The times of closes by session threads. A close can take longer than other calls: over NFSv4 it
/// asks the server, and the last one of a removed file frees its blocks.
pub(super) struct CloseLatency {
    smoothed: SmoothedLatency,
    /// The closes that session threads left to each replica's own threads.
    left: ReplicaMap<AtomicU64>,
}

impl CloseLatency {
    pub(super) fn new(replicas: usize) -> Self {
        let left = ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0));
        Self { smoothed: SmoothedLatency::new(replicas), left }
    }

    /// Whether a session thread may make the next close. Now and then it may also make a slow one,
    /// to measure it again.
    pub(super) fn is_quick(&self, replica: ReplicaId) -> bool {
        self.smoothed.us(replica) <= MAX_INLINE_US
            || self.left[replica].fetch_add(1, Ordering::Relaxed) % REMEASURE_EVERY
                == REMEASURE_EVERY - 1
    }

    pub(super) fn record(&self, replica: ReplicaId, time: Duration) {
        self.smoothed.record(replica, time);
    }
}

/// The latencies under an affinity rule, as `fanfs status` shows them.
#[derive(Clone, Debug)]
pub struct PinnedLatencies {
    /// Calls under the rule.
    pub calls: u64,
    /// Smoothed time of a call on each replica, microseconds; 0 for unknown.
    pub latencies_us: ReplicaMap<u64>,
}
