//! Where chunks are, inferred from how fast each replica delivers them.
//!
//! Without a provider the scheduler still sees that a replica serves one region
//! of a file faster than another one does. A region is a chunk's length; each
//! replica's pace there is kept as a mean with a weight, its confidence, which
//! halves every [`HALF_LIFE`]. A replica that is clearly slower in a region than
//! the best one, with confidence in both, is taken for remote; everybody else
//! counts as local and is so tried out.
//!
//! Pure: the time comes in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// Confidence halves in this time.
const HALF_LIFE: Duration = Duration::from_secs(300);

/// Segments that make a mean worth something.
const CONFIDENT: f64 = 4.0;

/// Segments beyond which confidence does not grow, so that it can be lost.
const MOST: f64 = 32.0;

/// Below this part of the best one's rate a replica is remote. Proxying costs a
/// gateway about half; replicas that differ by less are not worth telling apart.
const REMOTE_BELOW: f64 = 0.7;

/// Regions remembered for one file: 1 TiB in chunks of 256 MiB.
const MOST_REGIONS: usize = 4096;

/// What was learned about one file.
#[derive(Clone, Debug)]
pub struct Learned {
    chunk: u64,
    replicas: usize,
    regions: BTreeMap<u64, ReplicaMap<Mean>>,
}

#[derive(Clone, Copy, Debug)]
struct Mean {
    /// Seconds a byte.
    pace: f64,
    weight: f64,
    at: Instant,
}

impl Mean {
    fn weight(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        self.weight * 0.5f64.powf(age / HALF_LIFE.as_secs_f64())
    }
}

impl Learned {
    /// Nothing yet, of a file in chunks of `chunk` bytes.
    pub fn new(chunk: u64, replicas: usize) -> Self {
        Self { chunk: chunk.max(1), replicas, regions: BTreeMap::new() }
    }

    /// `replica` served a segment at `offset`, each byte in `pace` seconds.
    pub fn note(&mut self, offset: u64, replica: ReplicaId, pace: f64, now: Instant) {
        let region = offset / self.chunk;
        if !self.regions.contains_key(&region) && self.regions.len() >= MOST_REGIONS {
            self.regions.pop_first();
        }
        let none =
            || ReplicaMap::from_fn(self.replicas, |_| Mean { pace: 0.0, weight: 0.0, at: now });
        let mean = &mut self.regions.entry(region).or_insert_with(none)[replica];
        let weight = mean.weight(now);
        mean.pace = (mean.pace * weight + pace) / (weight + 1.0);
        mean.weight = (weight + 1.0).min(MOST);
        mean.at = now;
    }

    /// The replicas that may be local to the byte at `offset`; `None` where
    /// nothing tells them apart.
    pub fn local(&self, offset: u64, now: Instant) -> Option<ReplicaSet> {
        let means = self.regions.get(&(offset / self.chunk))?;
        let sure = |mean: &&Mean| mean.weight(now) >= CONFIDENT;
        let best = means.iter().map(|(_, mean)| mean).filter(sure);
        let best = best.map(|mean| mean.pace).fold(f64::INFINITY, f64::min);
        let remote = means
            .iter()
            .filter(|(_, mean)| sure(mean) && mean.pace > best / REMOTE_BELOW)
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

    fn learn(rates: &[f64], times: usize, now: Instant) -> Learned {
        let mut learned = Learned::new(100, rates.len());
        for _ in 0..times {
            for (i, rate) in rates.iter().enumerate() {
                learned.note(250, r(i), 1.0 / rate, now);
            }
        }
        learned
    }

    #[test]
    fn a_clearly_slower_replica_is_remote_in_that_region_only() {
        let now = Instant::now();
        let learned = learn(&[100.0, 50.0, 90.0], 5, now);
        let local = ReplicaSet::EMPTY.with(r(0)).with(r(2));
        assert_eq!(learned.local(299, now), Some(local));
        assert_eq!(learned.local(300, now), None);
        assert_eq!(learn(&[100.0, 80.0], 5, now).local(250, now), None);
    }

    #[test]
    fn a_few_segments_prove_nothing() {
        let now = Instant::now();
        assert_eq!(learn(&[100.0, 1.0], 3, now).local(250, now), None);
    }

    #[test]
    fn it_is_forgotten() {
        let now = Instant::now();
        let learned = learn(&[100.0, 10.0], 6, now);
        assert!(learned.local(250, now + HALF_LIFE / 4).is_some());
        assert_eq!(learned.local(250, now + HALF_LIFE), None);
    }

    #[test]
    fn a_region_that_moved_is_learned_anew() {
        let now = Instant::now();
        let mut learned = learn(&[100.0, 10.0], 100, now);
        for _ in 0..100 {
            learned.note(250, r(0), 0.1, now);
            learned.note(250, r(1), 0.01, now);
        }
        assert_eq!(learned.local(250, now), Some(ReplicaSet::EMPTY.with(r(1))));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut learned = Learned::new(1, 2);
        for offset in 0..3 * MOST_REGIONS as u64 {
            learned.note(offset, r(0), 1.0, now);
        }
        assert_eq!(learned.regions.len(), MOST_REGIONS);
    }
}
