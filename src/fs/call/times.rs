//! How long calls take on each replica, and when one is late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::scheduler::hedge::Lateness;
use crate::scheduler::metadata;
use crate::volume::{ReplicaId, ReplicaMap};

/// A read's time says how far its replica is from keeping its times; a call is too
/// short to say that of the next one so well. So another replica is asked when it
/// takes this many times as long as a read would be given ([`Lateness`]), and not
/// before [`crate::scheduler::hedge::SOONEST`].
const PATIENCE: f64 = 2.0;

/// Calls and their smoothed time, microseconds, on each replica; 0 where nothing
/// is known.
pub(super) struct Times {
    pub(super) calls: AtomicU64,
    since: Instant,
    /// When each was last asked or answered, microseconds from `since`.
    asked: ReplicaMap<AtomicU64>,
    smoothed: ReplicaMap<AtomicU64>,
    /// When each last answered, microseconds from `since`.
    answered: ReplicaMap<AtomicU64>,
    lateness: ReplicaMap<Mutex<Lateness>>,
}

impl Times {
    pub(super) fn new(replicas: usize) -> Self {
        Self {
            calls: AtomicU64::new(0),
            since: Instant::now(),
            asked: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            smoothed: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            answered: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            lateness: ReplicaMap::from_fn(replicas, |_| Mutex::default()),
        }
    }

    pub(super) fn of(&self, replica: ReplicaId) -> u64 {
        self.smoothed[replica].load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> ReplicaMap<u64> {
        self.smoothed.map(|_, time| time.load(Ordering::Relaxed))
    }

    /// How long each was not asked.
    pub(super) fn idle(&self) -> ReplicaMap<Duration> {
        let now = self.since.elapsed();
        let at = |at: &AtomicU64| Duration::from_micros(at.load(Ordering::Relaxed));
        self.asked.map(|_, asked| now.saturating_sub(at(asked)))
    }

    pub(super) fn asks(&self, replica: ReplicaId) {
        self.asked[replica].store(self.since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Whether a replica has answered nothing since `at`.
    pub(super) fn is_silent_since(&self, replica: ReplicaId, at: Instant) -> bool {
        let at = at.saturating_duration_since(self.since).as_micros() as u64;
        self.answered[replica].load(Ordering::Relaxed) <= at
    }

    /// How long a call on a replica may take before it is late.
    pub(super) fn patience(&self, replica: ReplicaId) -> Duration {
        let usual = Duration::from_micros(self.of(replica));
        usual.mul_f64(PATIENCE * self.lateness[replica].lock().patience())
    }

    pub(super) fn took(&self, replica: ReplicaId, time: Duration) {
        self.asks(replica);
        let now = self.since.elapsed().as_micros() as u64;
        self.answered[replica].fetch_max(now, Ordering::Relaxed);
        let smoothed = &self.smoothed[replica];
        let mean = smoothed.load(Ordering::Relaxed);
        if mean > 0 {
            self.lateness[replica].lock().add(time, Duration::from_micros(mean));
        }
        // A lost update is one sample less.
        smoothed.store(metadata::smooth(mean, time.as_micros() as u64), Ordering::Relaxed);
    }
}

/// How an affinity rule does, as `fanfs status` shows it.
#[derive(Clone, Debug)]
pub struct PinnedTimes {
    /// Calls under the rule.
    pub calls: u64,
    /// Smoothed time of a call on each replica, microseconds; 0 for unknown.
    pub times: ReplicaMap<u64>,
}
