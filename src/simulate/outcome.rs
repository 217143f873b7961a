//! What a simulation came to.

use hdrhistogram::Histogram;
use serde::Serialize;

/// One policy's result.
#[derive(Clone, Debug, Serialize)]
pub struct SimulationOutcome {
    /// The policy.
    pub policy: String,
    /// Seconds from the start until the last reader had everything.
    pub seconds: f64,
    /// Bytes that readers were given.
    pub bytes: u64,
    /// Sum of what the readers got, bytes a second, each over its own time.
    pub reader_rates: f64,
    /// All bytes over all the time.
    pub bytes_per_second: f64,
    /// The slowest reader's time over the fastest one's.
    pub spread: f64,
    /// Part of the bytes that replicas delivered of chunks on their own node, 0
    /// to 1.
    pub local: f64,
    /// Bytes that were delivered twice.
    pub wasted: u64,
    /// Segments that were asked of a second replica.
    pub hedges: u64,
    /// Quantiles of the time one read of an application took.
    pub latency: ReadLatency,
    /// Each replica's part.
    pub replicas: Vec<ReplicaOutcome>,
    /// False where the simulation was cut off at its longest time.
    pub complete: bool,
}

/// One replica's part.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaOutcome {
    /// Its name.
    pub name: String,
    /// Bytes that it delivered.
    pub bytes: u64,
    /// Of all that was delivered, 0 to 1.
    pub share: f64,
    /// Bytes of chunks on its own node.
    pub bytes_local: u64,
}

/// Quantiles, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ReadLatency {
    /// Median.
    pub p50_us: u64,
    /// 99 %.
    pub p99_us: u64,
    /// 99.9 %.
    pub p999_us: u64,
    /// Longest.
    pub max_us: u64,
}

impl ReadLatency {
    pub(super) fn from_histogram(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}
