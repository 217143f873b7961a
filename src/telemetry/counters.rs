//! The counters, and their snapshots, which `fanfs status` prints.
//!
//! Users see the field names in `fanfs status --json`; they change only with a note in the
//! changelog.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::histogram::{HistogramSnapshot, LatencyHistogram, LatencySummary};

/// What one replica has done since this daemon began to serve the mount.
#[derive(Default)]
pub struct ReplicaCounters {
    bytes_local: AtomicU64,
    bytes_remote: AtomicU64,
    bytes_unknown: AtomicU64,
    reads: AtomicU64,
    metadata: AtomicU64,
    errors: AtomicU64,
    slow: AtomicU64,
    disagreements: AtomicU64,
    differing: AtomicU64,
    read_latency: LatencyHistogram,
}

/// Whether a replica's node holds the chunk that a read is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkLocality {
    /// It does.
    Local,
    /// It does not.
    Remote,
    /// The placement of the chunk is unknown.
    Unknown,
}

/// The counters of the volume since this daemon began to serve the mount.
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
    /// Bytes that arrived after another replica had delivered them, or that no request wanted any
    /// more (duplicate reads).
    pub bytes_duplicate: AtomicU64,
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

/// Totals of one replica since this daemon began to serve the mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaCountersSnapshot {
    /// Bytes of file data delivered: the sum of the next three.
    pub bytes: u64,
    /// Bytes from chunks that the replica's node holds.
    pub bytes_local: u64,
    /// Bytes from chunks that its node does not hold.
    pub bytes_remote: u64,
    /// Bytes from chunks whose placement is unknown.
    pub bytes_unknown: u64,
    /// Positioned reads that delivered data.
    pub reads: u64,
    /// Metadata calls answered.
    pub metadata: u64,
    /// Calls that failed through the replica's fault.
    pub errors: u64,
    /// Reads that were also sent to another replica because this one was slow.
    pub slow: u64,
    /// Files of which this replica showed another version.
    pub disagreements: u64,
    /// Files that are not read from this replica because its bytes differ.
    pub differing: u64,
    /// The durations of positioned reads that delivered data.
    #[schemars(with = "LatencySummary")]
    pub read_latency: HistogramSnapshot,
}

/// Totals of the volume since this daemon began to serve the mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeCountersSnapshot {
    /// Bytes delivered to applications.
    pub bytes_delivered: u64,
    /// Read requests answered with data.
    pub reads: u64,
    /// Read requests answered with an error.
    pub read_errors: u64,
    /// The latency of these requests, from the request to its answer.
    #[schemars(with = "LatencySummary")]
    pub read_latency: HistogramSnapshot,
    /// Read requests that found all their bytes in memory.
    pub buffer_hits: u64,
    /// Read requests that had to wait for the buffer budget.
    pub budget_waits: u64,
    /// Segments sent to a second replica because the first one failed.
    pub retries: u64,
    /// Segments sent to a second replica because the first one was late.
    pub hedges: u64,
    /// Hedges that delivered the segment first.
    pub hedges_won: u64,
    /// Hedges that delivered the segment after another attempt had.
    pub hedges_lost: u64,
    /// Bytes that hedges delivered.
    pub hedge_bytes: u64,
    /// Blocks of 64 KiB that were compared with the deciding replica's.
    pub compared: u64,
    /// Differing blocks in which a third replica agreed with the other one against the deciding
    /// one.
    pub outvoted: u64,
    /// Bytes that arrived after another replica had delivered them, or that no request wanted any
    /// more (duplicate reads).
    pub bytes_duplicate: u64,
    /// Metadata calls answered.
    pub metadata: u64,
    /// Metadata calls answered by a replica other than the first one asked.
    pub metadata_failovers: u64,
    /// Write requests that succeeded.
    pub writes: u64,
    /// Write requests that failed.
    pub write_errors: u64,
    /// Bytes that applications wrote.
    pub bytes_written: u64,
    /// Changes of names and attributes, failed ones included.
    pub changes: u64,
}

impl ReplicaCounters {
    /// Records that a positioned read delivered `bytes` after `took`.
    pub fn record_read(&self, bytes: u64, took: Duration, locality: ChunkLocality) {
        let of_locality = match locality {
            ChunkLocality::Local => &self.bytes_local,
            ChunkLocality::Remote => &self.bytes_remote,
            ChunkLocality::Unknown => &self.bytes_unknown,
        };
        of_locality.fetch_add(bytes, Relaxed);
        self.reads.fetch_add(1, Relaxed);
        self.read_latency.record(took);
    }

    /// Records that a metadata call was answered, with data or with a definite error.
    pub fn record_metadata_call(&self) {
        self.metadata.fetch_add(1, Relaxed);
    }

    /// Records that a call failed through the replica's fault.
    pub fn record_error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Records that a read was sent to another replica because it was slow here.
    pub fn record_slow(&self) {
        self.slow.fetch_add(1, Relaxed);
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
    pub fn snapshot(&self) -> ReplicaCountersSnapshot {
        let bytes_local = self.bytes_local.load(Relaxed);
        let bytes_remote = self.bytes_remote.load(Relaxed);
        let bytes_unknown = self.bytes_unknown.load(Relaxed);
        ReplicaCountersSnapshot {
            bytes: bytes_local + bytes_remote + bytes_unknown,
            bytes_local,
            bytes_remote,
            bytes_unknown,
            reads: self.reads.load(Relaxed),
            metadata: self.metadata.load(Relaxed),
            errors: self.errors.load(Relaxed),
            slow: self.slow.load(Relaxed),
            disagreements: self.disagreements.load(Relaxed),
            differing: self.differing.load(Relaxed),
            read_latency: self.read_latency.snapshot(),
        }
    }
}

impl VolumeCounters {
    /// The current values of all counters.
    pub fn snapshot(&self) -> VolumeCountersSnapshot {
        VolumeCountersSnapshot {
            bytes_delivered: self.bytes_delivered.load(Relaxed),
            reads: self.reads.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            read_latency: self.read_latency.snapshot(),
            buffer_hits: self.buffer_hits.load(Relaxed),
            budget_waits: self.budget_waits.load(Relaxed),
            retries: self.retries.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            hedges_won: self.hedges_won.load(Relaxed),
            hedges_lost: self.hedges_lost.load(Relaxed),
            hedge_bytes: self.hedge_bytes.load(Relaxed),
            compared: self.compared.load(Relaxed),
            outvoted: self.outvoted.load(Relaxed),
            bytes_duplicate: self.bytes_duplicate.load(Relaxed),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_sum_over_all_localities() {
        let counters = ReplicaCounters::default();
        let took = Duration::from_millis(1);
        counters.record_read(1, took, ChunkLocality::Local);
        counters.record_read(2, took, ChunkLocality::Remote);
        counters.record_read(4, took, ChunkLocality::Unknown);
        let now = counters.snapshot();
        assert_eq!((now.bytes_local, now.bytes_remote, now.bytes_unknown), (1, 2, 4));
        assert_eq!((now.bytes, now.reads, now.read_latency.total()), (7, 3, 3));
    }
}
