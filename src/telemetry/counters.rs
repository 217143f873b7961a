//! The counters, and their snapshots, which `fanfs status` prints.
//!
//! Users see the field names in `fanfs status --json`; they change only with a note in the
//! changelog.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::histogram::{HistogramSnapshot, LatencyHistogram, LatencyQuantiles};

/// What one replica has done since this daemon began to serve the mount.
pub struct ReplicaCounters {
    bytes: AtomicU64,
    bytes_local: AtomicU64,
    bytes_remote: AtomicU64,
    reads: AtomicU64,
    metadata: AtomicU64,
    errors: AtomicU64,
    late: AtomicU64,
    disagreements: AtomicU64,
    differing: AtomicU64,
    read_latency: LatencyHistogram,
    meter: Mutex<ThroughputMeter>,
}

/// What has happened in the volume since this daemon began to serve the mount.
#[derive(Default)]
pub struct VolumeCounters {
    /// Bytes delivered to applications.
    pub bytes_delivered: AtomicU64,
    /// Read requests answered with data.
    pub reads: AtomicU64,
    /// Read requests answered with an error.
    pub read_errors: AtomicU64,
    /// The latency of these requests, from the request to its answer.
    pub read_latency: LatencyHistogram,
    /// Read requests that found all their bytes in memory.
    pub buffer_hits: AtomicU64,
    /// Read requests that had to wait for the buffer budget.
    pub budget_waits: AtomicU64,
    /// Segments sent to a second replica because the first one failed.
    pub retries: AtomicU64,
    /// Segments sent to a second replica because the first one was late.
    pub hedges: AtomicU64,
    /// Hedges that delivered the segment first.
    pub hedges_won: AtomicU64,
    /// Hedges that delivered the segment after another attempt had.
    pub hedges_lost: AtomicU64,
    /// Bytes that hedges delivered.
    pub hedge_bytes: AtomicU64,
    /// Blocks of 64 KiB that were compared with the deciding replica's.
    pub compared: AtomicU64,
    /// Differing blocks in which a third replica agreed with the other one against the deciding
    /// one.
    pub outvoted: AtomicU64,
    /// Bytes that arrived after another replica had delivered them.
    pub bytes_wasted: AtomicU64,
    /// Metadata calls answered.
    pub metadata: AtomicU64,
    /// Metadata calls answered by a replica other than the first one asked.
    pub metadata_failovers: AtomicU64,
    /// Write requests that succeeded.
    pub writes: AtomicU64,
    /// Write requests that failed.
    pub write_errors: AtomicU64,
    /// Bytes that applications wrote.
    pub bytes_written: AtomicU64,
    /// Changes of names and attributes, failed ones included.
    pub changes: AtomicU64,
}

/// A snapshot of [`ReplicaCounters`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaCountersSnapshot {
    /// Bytes of file data delivered.
    pub bytes: u64,
    /// The part of these bytes from chunks that the replica's node holds.
    pub bytes_local: u64,
    /// The part of these bytes from chunks that its node does not hold. Bytes of unknown placement
    /// are in neither part.
    pub bytes_remote: u64,
    /// Positioned reads that delivered data.
    pub reads: u64,
    /// Metadata calls answered.
    pub metadata: u64,
    /// Calls that failed through the replica's fault.
    pub errors: u64,
    /// Reads that were also sent to another replica because this one was late.
    pub late: u64,
    /// Files of which this replica showed another version.
    pub disagreements: u64,
    /// Files that are not read from this replica because its bytes differ.
    pub differing: u64,
    /// The mean rate over the last ten seconds, bytes per second.
    pub bytes_per_second: u64,
    /// Quantiles of the duration of positioned reads.
    pub read_latency: LatencyQuantiles,
}

/// A snapshot of [`VolumeCounters`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeCountersSnapshot {
    /// See [`VolumeCounters::bytes_delivered`].
    pub bytes_delivered: u64,
    /// See [`VolumeCounters::reads`].
    pub reads: u64,
    /// See [`VolumeCounters::read_errors`].
    pub read_errors: u64,
    /// Quantiles of [`VolumeCounters::read_latency`].
    #[serde(default)]
    pub read_latency: LatencyQuantiles,
    /// See [`VolumeCounters::buffer_hits`].
    pub buffer_hits: u64,
    /// See [`VolumeCounters::budget_waits`].
    pub budget_waits: u64,
    /// See [`VolumeCounters::retries`].
    pub retries: u64,
    /// See [`VolumeCounters::hedges`].
    pub hedges: u64,
    /// See [`VolumeCounters::hedges_won`].
    pub hedges_won: u64,
    /// See [`VolumeCounters::hedges_lost`].
    pub hedges_lost: u64,
    /// See [`VolumeCounters::hedge_bytes`].
    pub hedge_bytes: u64,
    /// See [`VolumeCounters::compared`].
    pub compared: u64,
    /// See [`VolumeCounters::outvoted`].
    pub outvoted: u64,
    /// See [`VolumeCounters::bytes_wasted`].
    pub bytes_wasted: u64,
    /// See [`VolumeCounters::metadata`].
    pub metadata: u64,
    /// See [`VolumeCounters::metadata_failovers`].
    pub metadata_failovers: u64,
    /// See [`VolumeCounters::writes`].
    pub writes: u64,
    /// See [`VolumeCounters::write_errors`].
    pub write_errors: u64,
    /// See [`VolumeCounters::bytes_written`].
    pub bytes_written: u64,
    /// See [`VolumeCounters::changes`].
    pub changes: u64,
}

impl Default for ReplicaCounters {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::default(),
            bytes_local: AtomicU64::default(),
            bytes_remote: AtomicU64::default(),
            reads: AtomicU64::default(),
            metadata: AtomicU64::default(),
            errors: AtomicU64::default(),
            late: AtomicU64::default(),
            disagreements: AtomicU64::default(),
            differing: AtomicU64::default(),
            read_latency: LatencyHistogram::default(),
            meter: Mutex::new(ThroughputMeter::new(Instant::now())),
        }
    }
}

impl ReplicaCounters {
    /// Records that a positioned read delivered `bytes` after `took`.
    pub fn record_read(&self, bytes: u64, took: Duration, now: Instant) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.reads.fetch_add(1, Relaxed);
        self.read_latency.record(took);
        self.meter.lock().add(bytes, now);
    }

    /// Records bytes from a chunk that the replica's node holds.
    pub fn record_local_bytes(&self, bytes: u64) {
        self.bytes_local.fetch_add(bytes, Relaxed);
    }

    /// Records bytes from a chunk that the replica's node does not hold.
    pub fn record_remote_bytes(&self, bytes: u64) {
        self.bytes_remote.fetch_add(bytes, Relaxed);
    }

    /// Records that a metadata call was answered, with data or with a definite error.
    pub fn record_metadata_call(&self) {
        self.metadata.fetch_add(1, Relaxed);
    }

    /// Records that a call failed through the replica's fault.
    pub fn record_error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Records that a read was sent to another replica because it was late here.
    pub fn record_late(&self) {
        self.late.fetch_add(1, Relaxed);
    }

    /// Records that the replica showed another version of a file than the handle's.
    pub fn record_disagreement(&self) {
        self.disagreements.fetch_add(1, Relaxed);
    }

    /// Records that the replica's bytes of a file differ from the deciding replica's.
    pub fn record_differing(&self) {
        self.differing.fetch_add(1, Relaxed);
    }

    /// The current values of all counters.
    pub fn snapshot(&self, now: Instant) -> ReplicaCountersSnapshot {
        ReplicaCountersSnapshot {
            bytes: self.bytes.load(Relaxed),
            bytes_local: self.bytes_local.load(Relaxed),
            bytes_remote: self.bytes_remote.load(Relaxed),
            reads: self.reads.load(Relaxed),
            metadata: self.metadata.load(Relaxed),
            errors: self.errors.load(Relaxed),
            late: self.late.load(Relaxed),
            disagreements: self.disagreements.load(Relaxed),
            differing: self.differing.load(Relaxed),
            bytes_per_second: self.meter.lock().rate(now),
            read_latency: self.read_histogram().quantiles(),
        }
    }

    /// The durations of positioned reads that delivered data.
    pub fn read_histogram(&self) -> HistogramSnapshot {
        self.read_latency.snapshot()
    }
}

impl VolumeCounters {
    /// The current values of all counters.
    pub fn snapshot(&self) -> VolumeCountersSnapshot {
        VolumeCountersSnapshot {
            bytes_delivered: self.bytes_delivered.load(Relaxed),
            reads: self.reads.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            read_latency: self.read_latency.snapshot().quantiles(),
            buffer_hits: self.buffer_hits.load(Relaxed),
            budget_waits: self.budget_waits.load(Relaxed),
            retries: self.retries.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            hedges_won: self.hedges_won.load(Relaxed),
            hedges_lost: self.hedges_lost.load(Relaxed),
            hedge_bytes: self.hedge_bytes.load(Relaxed),
            compared: self.compared.load(Relaxed),
            outvoted: self.outvoted.load(Relaxed),
            bytes_wasted: self.bytes_wasted.load(Relaxed),
            metadata: self.metadata.load(Relaxed),
            metadata_failovers: self.metadata_failovers.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            changes: self.changes.load(Relaxed),
        }
    }
}

/// Increments a counter. Counters are statistics, so they need no memory ordering.
pub fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// The rate over the last [`ThroughputMeter::SECONDS`], bytes per second.
struct ThroughputMeter {
    start: Instant,
    slots: [u64; ThroughputMeter::SECONDS as usize],
    newest_second: u64,
}

impl ThroughputMeter {
    const SECONDS: u64 = 10;

    fn new(start: Instant) -> Self {
        Self { start, slots: [0; Self::SECONDS as usize], newest_second: 0 }
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs()
    }

    fn add(&mut self, bytes: u64, now: Instant) {
        let second = self.second(now).max(self.newest_second);
        for stale in (self.newest_second + 1..=second).take(Self::SECONDS as usize) {
            self.slots[(stale % Self::SECONDS) as usize] = 0;
        }
        // After a pause longer than the ring every slot is stale.
        if second - self.newest_second > Self::SECONDS {
            self.slots = [0; Self::SECONDS as usize];
        }
        self.newest_second = second;
        self.slots[(second % Self::SECONDS) as usize] += bytes;
    }

    fn rate(&self, now: Instant) -> u64 {
        let second = self.second(now);
        let fresh = (0..Self::SECONDS)
            .filter_map(|age| second.checked_sub(age))
            .filter(|s| *s <= self.newest_second && s + Self::SECONDS > self.newest_second)
            .map(|s| self.slots[(s % Self::SECONDS) as usize])
            .sum::<u64>();
        let elapsed = now.saturating_duration_since(self.start).as_secs_f64();
        let span = elapsed.clamp(1.0, Self::SECONDS as f64);
        (fresh as f64 / span) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_meter_shows_the_last_ten_seconds() {
        let t0 = Instant::now();
        let mut meter = ThroughputMeter::new(t0);
        for second in 0..30 {
            meter.add(1000, at(t0, f64::from(second) + 0.5));
        }
        let rate = meter.rate(at(t0, 29.9));
        assert!((900..=1100).contains(&rate), "{rate}");
        assert_eq!(meter.rate(at(t0, 60.0)), 0);
        meter.add(10_000, at(t0, 100.0));
        assert_eq!(meter.rate(at(t0, 100.0)), 1000);
    }

    #[test]
    fn latency_quantiles_come_in_microseconds() {
        let counters = ReplicaCounters::default();
        let now = Instant::now();
        for _ in 0..99 {
            counters.record_read(1, Duration::from_millis(1), now);
        }
        counters.record_read(1, Duration::from_secs(1), now);
        let latency = counters.snapshot(now).read_latency;
        assert!((950..=1050).contains(&latency.p50_us), "{latency:?}");
        assert!(latency.max_us >= 990_000, "{latency:?}");
    }
}
