//! The known placement of one file. The locator keeps it for the files opened last, and open
//! files keep it too.
//!
//! An answer is about the whole file. It has a time from which the provider may be asked again.
//! Looking an offset up takes a read lock and a binary search; nothing here waits.
//!
//! A provider may call a replica local that repeatedly delivers a chunk at its remote rate.
//! fanfs then disbelieves the provider for that chunk and replica, and another query becomes due at
//! once: the chunk may have moved. The disbelief ends with a different answer. It also ends
//! after a while, as the replica may only have been slow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::chunks::LocalityMap;
use super::chunks::LocatedChunk;
use super::learned::LearnedPlacement;
use crate::volume::{Holders, ReplicaId, ReplicaSet};

/// Segments that are enough to judge a replica by.
const MIN_SEGMENTS: u32 = 12;

/// The weight of a new segment in the mean.
const NEW_SAMPLE_WEIGHT: f64 = 1.0 / 8.0;

/// A replica's local and remote rates must differ by this factor to be distinguished.
const MIN_RATE_RATIO: f64 = 1.4;

/// How long a replica is disbelieved for a chunk, if the answer stays the same.
const DISBELIEF_DURATION: Duration = Duration::from_secs(60);

/// The facts about a delivered segment that matter for placement.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Its offset in the file.
    pub offset: u64,
    /// The replica that delivered it.
    pub replica: ReplicaId,
    /// Seconds that the replica took for a byte. One segment proves little: of several that
    /// arrive together, all but the first seem to have taken no time.
    pub seconds_per_byte: f64,
    /// The replica's usual rate for chunks that its node holds, bytes a second.
    pub local_rate: Option<f64>,
    /// Its usual rate for other chunks, bytes a second.
    pub remote_rate: Option<f64>,
}

/// One file's placement.
pub struct FilePlacement {
    answer: RwLock<PlacementAnswer>,
    learned: Option<Mutex<LearnedPlacement>>,
    disbelief: Mutex<DisbeliefState>,
    /// The number of entries in `disbelief.disbelieved_until`, readable without its lock.
    disbelieved_count: AtomicUsize,
}

#[derive(Clone, Debug, Default)]
struct PlacementAnswer {
    locality: LocalityMap,
    query: QueryState,
}

#[derive(Clone, Copy, Debug, Default)]
enum QueryState {
    /// The provider was not asked yet.
    #[default]
    NotAsked,
    InFlight,
    /// The provider may be asked again at this time.
    DueAt(Instant),
}

impl QueryState {
    fn is_due(self, now: Instant) -> bool {
        match self {
            Self::NotAsked => true,
            Self::InFlight => false,
            Self::DueAt(due) => now >= due,
        }
    }
}

#[derive(Default)]
struct DisbeliefState {
    /// The number of segments and their mean seconds per byte, by chunk and replica.
    means: HashMap<(u64, ReplicaId), (u32, f64)>,
    disbelieved_until: HashMap<(u64, ReplicaId), Instant>,
}

impl FilePlacement {
    /// A placement that is unknown so far. With `learned` it is inferred from timing.
    pub fn new(learned: Option<LearnedPlacement>) -> Self {
        Self {
            answer: RwLock::default(),
            learned: learned.map(Mutex::new),
            disbelief: Mutex::default(),
            disbelieved_count: AtomicUsize::new(0),
        }
    }

    /// The replicas that hold the byte at `offset`; `None` if they are unknown.
    pub fn holders(&self, offset: u64, now: Instant) -> Option<Holders> {
        if let Some(learned) = &self.learned {
            let local = learned.lock().local_replicas(offset, now)?;
            return Some(Holders::local(local));
        }
        let LocatedChunk { range: chunk, holders } =
            self.answer.read().locality.chunk_at(offset)?;
        if self.disbelieved_count.load(Ordering::Relaxed) == 0 {
            return Some(holders);
        }
        let judge = self.disbelief.lock();
        let doubted = holders.local.iter().filter(|id| {
            judge.disbelieved_until.get(&(chunk.start, *id)).is_some_and(|until| now < *until)
        });
        let doubted = doubted.fold(ReplicaSet::EMPTY, ReplicaSet::with);
        Some(Holders { local: holders.local.minus(doubted), ..holders })
    }

    /// Whether the provider is to be asked now. The caller then asks it and reports an answer with
    /// [`Self::store_answer`], and in any case calls [`Self::query_done`].
    pub fn take_due_query(&self, now: Instant) -> bool {
        if self.learned.is_some() || !self.answer.read().query.is_due(now) {
            return false;
        }
        let mut answer = self.answer.write();
        let is_due = answer.query.is_due(now);
        if is_due {
            answer.query = QueryState::InFlight;
        }
        is_due
    }

    /// Stores the provider's answer, which is good until `due`. True if nothing was known before.
    pub fn store_answer(&self, mapped: LocalityMap, due: Instant) -> bool {
        {
            let mut judge = self.disbelief.lock();
            let known = self.answer.read();
            let same = |chunk: u64| known.locality.chunk_at(chunk) == mapped.chunk_at(chunk);
            judge.disbelieved_until.retain(|(chunk, _), _| same(*chunk));
            judge.means.retain(|(chunk, _), _| same(*chunk));
            self.disbelieved_count.store(judge.disbelieved_until.len(), Ordering::Relaxed);
        }
        let new = PlacementAnswer { locality: mapped, query: QueryState::DueAt(due) };
        std::mem::replace(&mut *self.answer.write(), new).locality.is_empty()
    }

    /// Ends a query. If it had no answer, the previous answer stays in use, and the provider
    /// may be asked again at `due`.
    pub fn query_done(&self, due: Instant) {
        let mut answer = self.answer.write();
        if matches!(answer.query, QueryState::InFlight) {
            answer.query = QueryState::DueAt(due);
        }
    }

    /// Records a segment. Returns true if a replica is disbelieved from now on, and the
    /// placement is due for another query.
    pub fn record_delivery(&self, came: Delivery, now: Instant) -> bool {
        let Delivery { offset, replica, seconds_per_byte: pace, .. } = came;
        if let Some(learned) = &self.learned {
            learned.lock().record(offset, replica, pace, now);
            return false;
        }
        let Some((local, remote)) = came.local_rate.zip(came.remote_rate) else {
            return false;
        };
        if local < remote * MIN_RATE_RATIO {
            return false;
        }
        let located = self.answer.read().locality.chunk_at(offset);
        let Some(LocatedChunk { range: chunk, holders }) = located else { return false };
        if !holders.local.contains(replica) {
            return false;
        }
        let mut judge = self.disbelief.lock();
        let key = (chunk.start, replica);
        if judge.disbelieved_until.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        let (count, mean) = judge.means.entry(key).or_insert((0, pace));
        *count += 1;
        *mean += (pace - *mean) * NEW_SAMPLE_WEIGHT;
        // The pace is compared with the geometric mean of both rates.
        if *count < MIN_SEGMENTS || *mean <= 1.0 / (local * remote).sqrt() {
            return false;
        }
        judge.means.remove(&key);
        judge.disbelieved_until.insert(key, now + DISBELIEF_DURATION);
        self.disbelieved_count.store(judge.disbelieved_until.len(), Ordering::Relaxed);
        drop(judge);
        let mut answer = self.answer.write();
        if !matches!(answer.query, QueryState::InFlight) {
            answer.query = QueryState::DueAt(now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunks::ChunkMapBuilder;
    use super::*;
    use crate::volume::ByteRange;

    fn set(ids: &[usize]) -> ReplicaSet {
        ids.iter().fold(ReplicaSet::EMPTY, |set, id| set.with(ReplicaId::new(*id)))
    }

    fn local(file: &FilePlacement, offset: u64, now: Instant) -> Option<ReplicaSet> {
        file.holders(offset, now).map(|holders| holders.local)
    }

    /// Chunks of 100 bytes: the first on replicas 0 and 1, the second on 2.
    fn answer(first: &[&str]) -> LocalityMap {
        let mut builder = ChunkMapBuilder::new();
        builder.add_chunk(ByteRange::new(0, 100), first.iter().copied()).unwrap();
        builder.add_chunk(ByteRange::new(100, 200), ["2"]).unwrap();
        let map = builder.finish();
        map.to_locality_map(|node| set(&[map.nodes()[node].parse().unwrap()]))
    }

    fn came(replica: usize, rate: f64) -> Delivery {
        Delivery {
            offset: 10,
            replica: ReplicaId::new(replica),
            seconds_per_byte: 1.0 / rate,
            local_rate: Some(100.0),
            remote_rate: Some(40.0),
        }
    }

    #[test]
    fn a_provider_is_asked_again_when_its_answer_is_old() {
        let now = Instant::now();
        let file = FilePlacement::new(None);
        assert_eq!(local(&file, 10, now), None);
        assert!(file.take_due_query(now));
        assert!(!file.take_due_query(now), "it is being asked");
        let later = now + Duration::from_secs(10);
        file.store_answer(answer(&["0", "1"]), later);
        assert_eq!(local(&file, 10, now), Some(set(&[0, 1])));
        assert_eq!(local(&file, 150, now), Some(set(&[2])));
        assert_eq!(local(&file, 200, now), None);
        assert!(!file.take_due_query(now));
        assert!(file.take_due_query(later));
        file.query_done(later + Duration::from_secs(1));
        assert_eq!(local(&file, 10, later), Some(set(&[0, 1])), "the old answer still counts");
        assert!(!file.take_due_query(later));
    }

    #[test]
    fn a_local_replica_with_remote_speed_is_checked_again() {
        let now = Instant::now();
        let file = FilePlacement::new(None);
        file.take_due_query(now);
        let far = now + Duration::from_secs(1000);
        file.store_answer(answer(&["0", "1"]), far);
        for _ in 0..100 {
            assert!(!file.record_delivery(came(0, 90.0), now), "it is as quick as it should be");
            assert!(!file.record_delivery(came(2, 40.0), now), "no provider said that it is local");
        }
        let disbelieved =
            (0..MIN_SEGMENTS).filter(|_| file.record_delivery(came(0, 41.0), now)).count();
        assert_eq!(disbelieved, 1);
        assert_eq!(local(&file, 10, now), Some(set(&[1])));
        assert!(file.take_due_query(now));
        // The same answer again changes nothing before time has passed.
        file.store_answer(answer(&["0", "1"]), far);
        assert_eq!(local(&file, 10, now), Some(set(&[1])));
        assert_eq!(local(&file, 10, now + DISBELIEF_DURATION), Some(set(&[0, 1])));
        // Another one counts at once.
        file.store_answer(answer(&["0", "2"]), far);
        assert_eq!(local(&file, 10, now), Some(set(&[0, 2])));
    }

    #[test]
    fn simultaneous_segments_are_no_evidence_of_locality() {
        let now = Instant::now();
        let file = FilePlacement::new(None);
        file.take_due_query(now);
        file.store_answer(answer(&["0"]), now + Duration::from_secs(1000));
        // Two at a time: the first took as long as both, the second nothing.
        for i in 0..400 {
            let rate = if i % 2 == 0 { 50.0 } else { 1e12 };
            assert!(!file.record_delivery(came(0, rate), now), "{i}");
        }
        assert_eq!(local(&file, 10, now), Some(set(&[0])));
    }
}
