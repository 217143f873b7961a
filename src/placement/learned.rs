//! Where chunks are, inferred from how fast each replica delivers them.
//!
//! Without a provider the scheduler still sees that a replica serves one region of a file
//! faster than another replica does. A region is a chunk's length. Each replica's pace there is
//! kept as a mean with a weight, its confidence, which halves every [`HALF_LIFE`]. A replica
//! counts as remote in a region if it is clearly slower there than the best one, with
//! confidence in both. Every other replica counts as local, and so gets tried.
//!
//! Pure: the caller passes the time in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// Confidence halves in this time.
const HALF_LIFE: Duration = Duration::from_secs(300);

/// The fewest segments that make a mean meaningful.
const MIN_CONFIDENCE: f64 = 4.0;

/// Confidence does not grow beyond this many segments, so that it can be lost.
const MAX_CONFIDENCE: f64 = 32.0;

/// A replica below this part of the best one's rate is remote. Proxying costs a gateway about
/// half of its rate; smaller differences are not worth distinguishing.
const REMOTE_RATE_SHARE: f64 = 0.7;

/// The most regions remembered for one file: 1 TiB in chunks of 256 MiB.
const MAX_REGIONS: usize = 4096;

/// The inferred placement of one file.
#[derive(Clone, Debug)]
pub struct LearnedPlacement {
    chunk_size: u64,
    replicas: usize,
    regions: BTreeMap<u64, ReplicaMap<WeightedMean>>,
}

#[derive(Clone, Copy, Debug)]
struct WeightedMean {
    /// Seconds a byte.
    seconds_per_byte: f64,
    weight: f64,
    updated_at: Instant,
}

impl WeightedMean {
    fn weight(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.updated_at).as_secs_f64();
        self.weight * 0.5f64.powf(age / HALF_LIFE.as_secs_f64())
    }
}

impl LearnedPlacement {
    /// An empty record of a file in chunks of `chunk` bytes.
    pub fn new(chunk: u64, replicas: usize) -> Self {
        Self { chunk_size: chunk.max(1), replicas, regions: BTreeMap::new() }
    }

    /// Records that `replica` served a segment at `offset`, each byte in `pace` seconds.
    pub fn record(&mut self, offset: u64, replica: ReplicaId, pace: f64, now: Instant) {
        let region = offset / self.chunk_size;
        if !self.regions.contains_key(&region) && self.regions.len() >= MAX_REGIONS {
            self.regions.pop_first();
        }
        let none = || {
            ReplicaMap::from_fn(self.replicas, |_| WeightedMean {
                seconds_per_byte: 0.0,
                weight: 0.0,
                updated_at: now,
            })
        };
        let mean = &mut self.regions.entry(region).or_insert_with(none)[replica];
        let weight = mean.weight(now);
        mean.seconds_per_byte = (mean.seconds_per_byte * weight + pace) / (weight + 1.0);
        mean.weight = (weight + 1.0).min(MAX_CONFIDENCE);
        mean.updated_at = now;
    }

    /// The replicas that may be local to the byte at `offset`; `None` if their paces do not
    /// differ clearly.
    pub fn local_replicas(&self, offset: u64, now: Instant) -> Option<ReplicaSet> {
        let means = self.regions.get(&(offset / self.chunk_size))?;
        let sure = |mean: &&WeightedMean| mean.weight(now) >= MIN_CONFIDENCE;
        let best = means.iter().map(|(_, mean)| mean).filter(sure);
        let best = best.map(|mean| mean.seconds_per_byte).fold(f64::INFINITY, f64::min);
        let remote = means
            .iter()
            .filter(|(_, mean)| sure(mean) && mean.seconds_per_byte > best / REMOTE_RATE_SHARE)
            .fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id));
        (!remote.is_empty()).then(|| means.all().minus(remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    fn learn(rates: &[f64], times: usize, now: Instant) -> LearnedPlacement {
        let mut learned = LearnedPlacement::new(100, rates.len());
        for _ in 0..times {
            for (i, rate) in rates.iter().enumerate() {
                learned.record(250, r(i), 1.0 / rate, now);
            }
        }
        learned
    }

    #[test]
    fn a_clearly_slower_replica_is_remote_in_that_region_only() {
        let now = Instant::now();
        let learned = learn(&[100.0, 50.0, 90.0], 5, now);
        let local = ReplicaSet::EMPTY.with(r(0)).with(r(2));
        assert_eq!(learned.local_replicas(299, now), Some(local));
        assert_eq!(learned.local_replicas(300, now), None);
        assert_eq!(learn(&[100.0, 80.0], 5, now).local_replicas(250, now), None);
    }

    #[test]
    fn a_few_segments_prove_nothing() {
        let now = Instant::now();
        assert_eq!(learn(&[100.0, 1.0], 3, now).local_replicas(250, now), None);
    }

    #[test]
    fn learned_locality_expires() {
        let now = Instant::now();
        let learned = learn(&[100.0, 10.0], 6, now);
        assert!(learned.local_replicas(250, now + HALF_LIFE / 4).is_some());
        assert_eq!(learned.local_replicas(250, now + HALF_LIFE), None);
    }

    #[test]
    fn a_moved_region_is_learned_again() {
        let now = Instant::now();
        let mut learned = learn(&[100.0, 10.0], 100, now);
        for _ in 0..100 {
            learned.record(250, r(0), 0.1, now);
            learned.record(250, r(1), 0.01, now);
        }
        assert_eq!(learned.local_replicas(250, now), Some(ReplicaSet::EMPTY.with(r(1))));
    }

    #[test]
    fn learned_regions_are_bounded() {
        let now = Instant::now();
        let mut learned = LearnedPlacement::new(1, 2);
        for offset in 0..3 * MAX_REGIONS as u64 {
            learned.record(offset, r(0), 1.0, now);
        }
        assert_eq!(learned.regions.len(), MAX_REGIONS);
    }
}
