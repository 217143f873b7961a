//! The result of a simulation.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The result under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct SimulationOutcome {
    /// The policy's name.
    pub policy: String,
    /// Seconds from the start until the last reader finished.
    pub seconds: f64,
    /// Bytes that readers received.
    pub bytes: u64,
    /// The sum of the readers' rates, bytes per second, each over its own time.
    pub reader_rates: f64,
    /// All bytes divided by the whole time.
    pub bytes_per_second: f64,
    /// The slowest reader's time divided by the fastest reader's time.
    pub spread: f64,
    /// The fraction of delivered bytes that came from chunks on the delivering replica's own node,
    /// 0 to 1.
    pub local: f64,
    /// Bytes that were delivered twice.
    pub wasted: u64,
    /// Segments that were also requested from a second replica.
    pub hedges: u64,
    /// Quantiles of the latency of an application's reads.
    pub latency: ReadLatency,
    /// The contribution of each replica.
    pub replicas: Vec<ReplicaOutcome>,
    /// False where the simulation reached its time limit.
    pub complete: bool,
}

/// The contribution of one replica.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaOutcome {
    /// Its name.
    pub name: String,
    /// Bytes that it delivered.
    pub bytes: u64,
    /// Its fraction of all delivered bytes, 0 to 1.
    pub share: f64,
    /// Bytes of chunks on its own node.
    pub bytes_local: u64,
}

/// Latency quantiles, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ReadLatency {
    /// The median.
    pub p50_us: u64,
    /// The 99 % quantile.
    pub p99_us: u64,
    /// The 99.9 % quantile.
    pub p999_us: u64,
    /// The longest read.
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
