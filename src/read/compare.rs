//! Contents compared while they are read, in `copies` volumes.
//!
//! Copies of the same size and time need not have the same bytes. So some of what
//! is delivered is looked at again, afterwards: a small block of a segment is read
//! from the replica that delivered it and from the *deciding* one, the first in
//! the configuration that serves the file. Which segments is told by a hash of the
//! file's path and their offset, and of files of several segments it is the first
//! one of each replica as well. A replica that has other bytes is kept off the
//! file, at this version, for as long as that is remembered.
//!
//! Before that the block is read from it once more, and its version asked for: a
//! copy that is being replaced is not at fault. And a third replica is asked which
//! of the two it agrees with, which is told and changes nothing (SEMANTICS.md says
//! why).
//!
//! *Invariants:*
//! - A reader never waits for it: it begins when he has his answer, claims memory
//!   as readahead does, and does without where there is none.
//! - A few comparisons are under way at a time, whatever hangs.
//! - The deciding replica is never kept off by it, so somebody is left to read.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lru::LruCache;
use parking_lot::Mutex;

use super::Reader;
use super::fetch::{Fetch, Stage};
use super::file::OpenFile;
use crate::backend::{Backend, BackendError, Lane};
use crate::buffer::Buffer;
use crate::config::units::Share;
use crate::telemetry::counters::count;
use crate::volume::{AtomicReplicaSet, ByteRange, FileVersion, ReplicaId, ReplicaMap, ReplicaSet};

/// What is compared of a segment, bytes: enough to meet a damaged page of it or a
/// file that was copied in part, a sixteenth of a default segment's cost.
const BLOCK: u64 = 64 * 1024;

/// Comparisons under way at most. They wait behind reads on the replicas' own
/// threads, and each holds one [`BLOCK`] of memory.
const UNDER_WAY: usize = 4;

/// Files that are remembered to differ.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// What is compared in a volume, and what was found.
pub(super) struct Comparer {
    /// A segment whose hash is below it is compared.
    below: u64,
    under_way: AtomicUsize,
    /// Who is kept off which version of which file.
    kept_off: Mutex<LruCache<u128, ReplicaSet>>,
}

/// What an open file knows of it.
#[derive(Default)]
pub(super) struct Marks {
    /// Stands for the path and the version.
    key: u128,
    /// Replicas of which some segment has been compared, or need not be.
    asked: AtomicReplicaSet,
    /// Replicas that have other bytes than the deciding one.
    kept_off: AtomicReplicaSet,
}

impl Marks {
    /// Replicas that have other bytes than the deciding one.
    pub(super) fn kept_off(&self) -> ReplicaSet {
        self.kept_off.get()
    }
}

impl Comparer {
    /// `None` where nothing is to be compared.
    pub(super) fn new(share: Share) -> Option<Self> {
        (share.0 > 0.0).then(|| Self {
            below: (share.0 * 2f64.powi(64)) as u64,
            under_way: AtomicUsize::new(0),
            kept_off: Mutex::new(LruCache::new(REMEMBERED)),
        })
    }

    /// The marks of a file that is opened.
    pub(super) fn marks(&self, path: &std::path::Path, version: FileVersion) -> Marks {
        use std::os::unix::ffi::OsStrExt;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&version.size.to_le_bytes()).update(&version.mtime.0.to_le_bytes());
        hasher.update(&version.mtime.1.to_le_bytes()).update(path.as_os_str().as_bytes());
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        let marks = Marks { key: u128::from_le_bytes(key), ..Marks::default() };
        let known = self.kept_off.lock().get(&marks.key).copied();
        known.into_iter().flat_map(ReplicaSet::iter).for_each(|id| marks.kept_off.put(id, true));
        marks
    }

    fn enter(&self) -> bool {
        let more = |n: usize| (n < UNDER_WAY).then_some(n + 1);
        self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// Spreads a file's segments over all numbers.
fn hash(key: u128, start: u64) -> u64 {
    let x = (key as u64 ^ start).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One block of one file, on its way from replica to replica.
struct Comparison {
    reader: Arc<Reader>,
    file: Arc<OpenFile>,
    range: ByteRange,
    /// Who delivered it.
    replica: ReplicaId,
    deciding: ReplicaId,
    /// Until it goes.
    buffer: Option<Buffer>,
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.buffer = None;
        if let Some(comparer) = &self.reader.comparer {
            comparer.under_way.fetch_sub(1, Ordering::Relaxed);
        }
        self.reader.make_room();
    }
}

/// A replica has delivered a segment, and who waited for it has it.
pub(super) fn delivered(reader: &Arc<Reader>, fetch: &Fetch, replica: ReplicaId) {
    let Some(comparer) = &reader.comparer else { return };
    let file = &fetch.file;
    let marks = &file.marks;
    let hash = hash(marks.key, fetch.range.start);
    let is_first = !marks.asked.get().contains(replica);
    // One segment is no more than a lookup's worth: to open each small file on
    // another replica as well would double what it costs.
    let is_due = is_first && file.version().size > reader.policy.segment || hash < comparer.below;
    if !is_due || file.is_retired() {
        return;
    }
    let serving = file.candidates().and(reader.usable().replicas);
    let Some(deciding) = serving.iter().next() else { return };
    if deciding == replica {
        return marks.asked.put(replica, true);
    }
    if !comparer.enter() {
        return;
    }
    let blocks = fetch.range.len().div_ceil(BLOCK);
    let start = fetch.range.start + (hash >> 32) % blocks * BLOCK;
    let mut comparison = Comparison {
        reader: Arc::clone(reader),
        file: Arc::clone(file),
        range: ByteRange::at(start, BLOCK).intersect(fetch.range),
        replica,
        deciding,
        buffer: None,
    };
    let Some(claim) = reader.buffers.budget().claim_spare(BLOCK) else { return };
    // Without memory nothing is compared.
    let Ok(buffer) = reader.buffers.buffer(comparison.range.len() as usize, claim) else { return };
    comparison.buffer = Some(buffer);
    marks.asked.put(replica, true);
    comparison.on(replica, |theirs, comparison| {
        let deciding = comparison.deciding;
        comparison.on(deciding, move |ours, comparison| comparison.judge(theirs, ours));
    });
}

impl Comparison {
    /// Reads the block on replica `id`, on its own threads, and goes on with its
    /// hash. A comparison ends where that fails, or the file is another one.
    fn on(mut self, id: ReplicaId, then: impl FnOnce(blake3::Hash, Self) + Send + 'static) {
        let reader = Arc::clone(&self.reader);
        let job = move |backend: &dyn Backend| {
            if let Ok(hash) = self.read(id, backend) {
                then(hash, self);
            }
        };
        // Where there is no room the job is dropped, and the comparison with it.
        let _ = reader.replicas[id].submit(Lane::Read, job);
    }

    fn read(&mut self, id: ReplicaId, backend: &dyn Backend) -> Result<blake3::Hash, BackendError> {
        let file = self.file.compared_on(id, backend)?;
        let Some(buffer) = &mut self.buffer else { return Err(BackendError::Busy) };
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(self.range.start + filled as u64, &mut buffer[filled..])? {
                0 => return Err(BackendError::Short),
                n => filled += n,
            }
        }
        let hash = blake3::hash(buffer);
        // What it has open may have been rewritten meanwhile.
        match self.file.is_version(&file.attr()?) {
            true => Ok(hash),
            false => Err(BackendError::Version),
        }
    }

    fn judge(self, theirs: blake3::Hash, ours: blake3::Hash) {
        count(&self.reader.counters.compared);
        if theirs == ours {
            return;
        }
        let (replica, deciding) = (self.replica, self.deciding);
        // Both once more: one of them may have been replaced between the two.
        self.on(replica, move |theirs, comparison| {
            comparison.on(deciding, move |ours, comparison| {
                if theirs != ours {
                    comparison.keep_off(theirs);
                }
            });
        });
    }

    fn keep_off(self, theirs: blake3::Hash) {
        let Self { reader, file, replica, deciding, .. } = &self;
        let marks = &file.marks;
        let Some(comparer) = &reader.comparer else { return };
        {
            let mut known = comparer.kept_off.lock();
            if marks.kept_off().contains(*replica) {
                return;
            }
            marks.kept_off.put(*replica, true);
            let all = known.get(&marks.key).copied().unwrap_or_default();
            known.put(marks.key, all.with(*replica));
        }
        forget_unread(file);
        let counters = &reader.replicas[*replica].counters;
        counters.disagreement();
        counters.differing();
        let name = |id: ReplicaId| reader.replicas[id].name.as_str();
        tracing::warn!(
            replica = name(*replica),
            deciding = name(*deciding),
            "a replica has other bytes of a file than the deciding one, at the same size and \
             time, and is kept off it; `fanfs verify` says which and where"
        );
        tracing::debug!(path = ?file.path(), range = ?self.range, "the file in question");
        let other = |id: &ReplicaId| id != replica && id != deciding;
        // One that is kept off as well may agree, and of two that are found at the same
        // moment each finds the other.
        let kept_off = marks.kept_off();
        let witness = kept_off.iter().find(other).or_else(|| file.candidates().iter().find(other));
        let Some(witness) = witness else { return };
        self.on(witness, move |says, comparison| {
            if says == theirs {
                comparison.outvoted(witness);
            }
        });
    }

    fn outvoted(self, witness: ReplicaId) {
        count(&self.reader.counters.outvoted);
        let names: &ReplicaMap<_> = &self.reader.replicas;
        tracing::warn!(
            deciding = %names[self.deciding].name,
            agree = ?[&names[self.replica].name, &names[witness].name],
            "two replicas agree against the deciding one about a file; it is read from the \
             deciding one all the same"
        );
    }
}

/// Forgets what is in memory of a file and nobody waits for: who is kept off may
/// have brought it.
fn forget_unread(file: &OpenFile) {
    let forgotten: Vec<Arc<Fetch>> = {
        let mut segments = file.segments.lock();
        let here = |fetch: &Arc<Fetch>| matches!(fetch.state.lock().stage, Stage::Ready(_));
        let starts: Vec<u64> =
            segments.iter().filter(|(_, fetch)| here(fetch)).map(|(start, _)| *start).collect();
        starts.iter().filter_map(|start| segments.remove(start)).collect()
    };
    drop(forgotten);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_share_is_kept_and_a_file_always_has_the_same_segments() {
        let version = FileVersion { ino: 1, size: 7, mtime: (1, 2), ctime: (3, 4) };
        let comparer = Comparer::new(Share(0.01)).unwrap();
        let due = |path: &str| -> Vec<u64> {
            let key = comparer.marks(Path::new(path), version).key;
            (0..100_000)
                .map(|i| i << 20)
                .filter(|start| hash(key, *start) < comparer.below)
                .collect()
        };
        assert!((800..1200).contains(&due("a").len()), "{}", due("a").len());
        assert_eq!(due("a"), due("a"));
        assert_ne!(due("a"), due("b"));
        assert!(Comparer::new(Share(0.0)).is_none());
    }
}
