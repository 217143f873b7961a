//! Compares file contents while they are read, in `copies` volumes.
//!
//! Copies of the same size and time may still have different bytes. So a part of the delivered data
//! is checked afterwards. fanfs reads a small block of a segment again, from the replica that
//! delivered it and from the *deciding* one: the first in the configuration that serves the file. A
//! hash of the file's path and the segment's offset selects the segments. For files of several
//! segments, fanfs also checks the first segment that each replica delivers. A replica with
//! different bytes is excluded from the file, at this version, until fanfs forgets the file.
//!
//! Before that, fanfs reads the block from both replicas once more and checks the versions: a copy
//! that is just being replaced is not at fault. Then a third replica reads the block too. If it
//! agrees with the excluded replica, fanfs logs and counts that and changes nothing else
//! (SEMANTICS.md says why).
//!
//! *Invariants:*
//! - A reader never waits for a comparison. It starts after the reader has its answer, claims
//!   memory as readahead does, and is skipped if memory is short.
//! - Only a few comparisons are in progress at a time, even if some hang.
//! - The deciding replica is never excluded, so one replica is always left to read from.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use lru::LruCache;
use parking_lot::Mutex;

use super::Reader;
use super::content_check_state::ContentCheckState;
use super::fetch::{FetchStage, SegmentFetch, SharedSegments};
use super::versioned_file::VersionedFile;
use crate::backend::{Backend, BackendError, Lane};
use crate::buffer::Buffer;
use crate::config::units::Share;
use crate::telemetry::counters::increment;
use crate::volume::{
    AtomicReplicaSet, ByteRange, FileVersion, ReplicaId, ReplicaSet, VolumeMode, splitmix64,
};

/// The bytes of a segment that are compared. They are enough to hit a damaged page or a partly
/// copied file, at a sixteenth of the cost of a default segment.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The most comparisons in progress. They queue behind reads on the replicas' own threads, and each
/// holds one [`BLOCK_BYTES`] of memory.
const MAX_COMPARISONS: usize = 4;

/// The number of files whose excluded replicas are remembered.
const MAX_REMEMBERED_FILES: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// The comparisons of a volume, and their results.
pub(super) struct ContentChecker {
    /// Segments with a hash below this are compared.
    hash_limit: u64,
    in_progress: AtomicUsize,
    excluded: Mutex<ExcludedReplicas>,
}

/// The excluded replicas of each file version.
struct ExcludedReplicas {
    /// Of the versions that are open.
    open: HashMap<u128, Weak<AtomicReplicaSet>>,
    /// Of those with any, also after the close.
    remembered: LruCache<u128, Exclusion>,
}

/// The replicas that are excluded from a file version.
#[derive(Clone, Copy, Default)]
struct Exclusion {
    replicas: ReplicaSet,
    /// Whether the kernel may have pages that one of them delivered.
    has_stale_pages: bool,
}

impl ExcludedReplicas {
    /// Those of a version that is being opened.
    fn open(&mut self, key: u128) -> Arc<AtomicReplicaSet> {
        if let Some(shared) = self.open.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Arc::<AtomicReplicaSet>::default();
        let known = self.remembered.get(&key).copied().unwrap_or_default();
        known.replicas.iter().for_each(|id| shared.set_member(id, true));
        if self.open.len() == self.open.capacity() {
            self.open.retain(|_, entry| entry.strong_count() > 0);
        }
        self.open.insert(key, Arc::downgrade(&shared));
        shared
    }
}

impl ContentChecker {
    /// `None` if the share is 0.
    pub(super) fn new(share: Share) -> Option<Self> {
        (share.0 > 0.0).then(|| Self {
            hash_limit: (share.0 * 2f64.powi(64)) as u64,
            in_progress: AtomicUsize::new(0),
            excluded: Mutex::new(ExcludedReplicas {
                open: HashMap::new(),
                remembered: LruCache::new(MAX_REMEMBERED_FILES),
            }),
        })
    }

    /// The initial state for a file that is being opened.
    pub(super) fn check_state(
        &self,
        path: &std::path::Path,
        version: FileVersion,
    ) -> ContentCheckState {
        use std::os::unix::ffi::OsStrExt;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&version.size.to_le_bytes()).update(&version.mtime.0.to_le_bytes());
        hasher.update(&version.mtime.1.to_le_bytes()).update(path.as_os_str().as_bytes());
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        let key = u128::from_le_bytes(key);
        let excluded = self.excluded.lock().open(key);
        ContentCheckState { key, excluded, ..ContentCheckState::default() }
    }

    pub(super) fn has_stale_pages(&self) -> bool {
        let known = self.excluded.lock();
        known.remembered.iter().any(|(_, found)| found.has_stale_pages)
    }

    fn try_start(&self) -> bool {
        let more = |n: usize| (n < MAX_COMPARISONS).then_some(n + 1);
        self.in_progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// Spreads a file's segments over all numbers.
fn segment_hash(key: u128, start: u64) -> u64 {
    splitmix64(key as u64 ^ start)
}

/// One block of a file, read from one replica after the other.
struct Comparison {
    reader: Arc<Reader>,
    file: Arc<VersionedFile>,
    /// The known segments of its open file, if that is open.
    segments: Weak<SharedSegments>,
    range: ByteRange,
    /// The replica that delivered it.
    replica: ReplicaId,
    deciding: ReplicaId,
    /// `Some` until the comparison ends.
    buffer: Option<Buffer>,
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.buffer = None;
        if let Some(checker) = &self.reader.content_checker {
            checker.in_progress.fetch_sub(1, Ordering::Relaxed);
        }
        self.reader.serve_waiters();
    }
}

/// Whether the segment at `start` will be compared after `replica` has delivered it.
pub(super) fn is_due(
    reader: &Reader,
    file: &VersionedFile,
    start: u64,
    replica: ReplicaId,
) -> bool {
    let Some(checker) = &reader.content_checker else { return false };
    let check_state = &file.content_check;
    let is_first = !check_state.checked.get().contains(replica);
    // Not for a file of one segment: opening each small file on a second replica would double its
    // cost.
    is_first && file.version().size > reader.policy.segment
        || segment_hash(check_state.key, start) < checker.hash_limit
}

/// Starts a comparison if one is due. Call it after a replica has delivered a segment and the
/// waiting requests have their answers.
pub(super) fn start_comparison(reader: &Arc<Reader>, fetch: &SegmentFetch, replica: ReplicaId) {
    let Some(checker) = &reader.content_checker else { return };
    let file = &fetch.file;
    if !is_due(reader, file, fetch.range.start, replica) || file.is_retired() {
        return;
    }
    let check_state = &file.content_check;
    let hash = segment_hash(check_state.key, fetch.range.start);
    let serving =
        file.candidates().and(reader.replicas.availability().for_calls(VolumeMode::Copies));
    let deciding = deciding_replica(serving, replica);
    if deciding == replica {
        return check_state.checked.set_member(replica, true);
    }
    if !checker.try_start() {
        return;
    }
    let blocks = fetch.range.len().div_ceil(BLOCK_BYTES);
    let start = fetch.range.start + (hash >> 32) % blocks * BLOCK_BYTES;
    let mut comparison = Comparison {
        reader: Arc::clone(reader),
        file: Arc::clone(file),
        segments: fetch.weak_segments(),
        range: ByteRange::at(start, BLOCK_BYTES).intersect(fetch.range),
        replica,
        deciding,
        buffer: None,
    };
    let Some(claim) = reader.buffers.budget().claim_spare(BLOCK_BYTES) else { return };
    // Without memory there is no comparison.
    let Ok(buffer) = reader.buffers.allocate(comparison.range.len() as usize, claim) else {
        return;
    };
    comparison.buffer = Some(buffer);
    check_state.checked.set_member(replica, true);
    comparison.hash_on(replica, |theirs, comparison| {
        let deciding = comparison.deciding;
        comparison
            .hash_on(deciding, move |ours, comparison| comparison.compare_hashes(theirs, ours));
    });
}

/// The replica with which `replica` is compared: the first in the order of the configuration, of
/// those that serve the file and `replica` itself. It is never a later one, so two copies cannot
/// exclude each other, and the first is never excluded.
fn deciding_replica(serving: ReplicaSet, replica: ReplicaId) -> ReplicaId {
    serving.iter().find(|first| *first < replica).unwrap_or(replica)
}

impl Comparison {
    /// Reads the block on one of replica `id`'s own threads and passes its hash to `then`. The
    /// comparison ends if the read fails or the file has changed.
    fn hash_on(mut self, id: ReplicaId, then: impl FnOnce(blake3::Hash, Self) + Send + 'static) {
        let reader = Arc::clone(&self.reader);
        let job = move |backend: &dyn Backend| {
            if let Ok(hash) = self.hash_block(id, backend) {
                then(hash, self);
            }
        };
        // If the queue is full, the job is dropped, and the comparison with it.
        let _ = reader.replicas[id].submit(Lane::Read, job);
    }

    fn hash_block(
        &mut self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<blake3::Hash, BackendError> {
        let file = self.file.open_for_comparison(id, backend)?;
        let Some(buffer) = &mut self.buffer else { return Err(BackendError::QueueFull) };
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(self.range.start + filled as u64, &mut buffer[filled..])? {
                0 => return Err(BackendError::Truncated),
                n => filled += n,
            }
        }
        let hash = blake3::hash(buffer);
        // The open file may have been rewritten during the read.
        match self.file.is_version(&file.attr()?) {
            true => Ok(hash),
            false => Err(BackendError::VersionMismatch),
        }
    }

    fn compare_hashes(self, theirs: blake3::Hash, ours: blake3::Hash) {
        increment(&self.reader.counters.compared);
        if theirs == ours {
            return;
        }
        let replica = self.replica;
        let deciding = self.deciding;
        // Read both once more: one of them may have been replaced in between.
        self.hash_on(replica, move |theirs, comparison| {
            comparison.hash_on(deciding, move |ours, comparison| {
                if theirs != ours {
                    comparison.exclude_replica(theirs);
                }
            });
        });
    }

    fn exclude_replica(self, theirs: blake3::Hash) {
        let Self { reader, file, replica, deciding, .. } = &self;
        let check_state = &file.content_check;
        let Some(checker) = &reader.content_checker else { return };
        {
            let mut known = checker.excluded.lock();
            let excluded = check_state.excluded();
            // A copy that differs from the one that excluded the deciding replica is compared again.
            if excluded.contains(*replica) || excluded.contains(*deciding) {
                return check_state.checked.set_member(*replica, excluded.contains(*replica));
            }
            check_state.excluded.set_member(*replica, true);
            let replicas = excluded.with(*replica);
            let found = Exclusion { replicas, has_stale_pages: true };
            known.remembered.put(check_state.key, found);
        }
        if let Some(segments) = self.segments.upgrade() {
            forget_unread_segments(&segments);
        }
        let counters = &reader.replicas[*replica].counters;
        counters.record_disagreement();
        counters.record_differing();
        let name = |id: ReplicaId| reader.replicas[id].name.as_str();
        tracing::warn!(
            replica = name(*replica),
            deciding = name(*deciding),
            "a replica's copy of a file differs in content from the deciding replica's at the same \
             size and mtime; fanfs reads the file from other replicas; run `fanfs verify`"
        );
        tracing::debug!(path = ?file.path(), range = ?self.range, "the file that differs");
        let other = |id: &ReplicaId| id != replica && id != deciding;
        // An excluded replica may be the witness too. If two bad replicas are found at the same
        // moment, each is the other's witness.
        let kept_off = check_state.excluded();
        let witness = kept_off.iter().find(other).or_else(|| file.candidates().iter().find(other));
        let Some(witness) = witness else { return };
        self.hash_on(witness, move |says, comparison| {
            if says == theirs {
                comparison.report_outvoted(witness);
            }
        });
    }

    fn report_outvoted(self, witness: ReplicaId) {
        increment(&self.reader.counters.outvoted);
        let names = &self.reader.replicas;
        tracing::warn!(
            deciding = %names[self.deciding].name,
            agree = ?[&names[self.replica].name, &names[witness].name],
            "two replicas agree on the content of a file, and the deciding replica differs; fanfs \
             still reads the file from the deciding replica; run `fanfs verify`"
        );
    }
}

/// Whether the kernel must drop the file's pages, because an excluded replica may have delivered
/// some. True once for each exclusion: the caller tells the kernel.
pub(super) fn take_stale_pages(reader: &Reader, file: &VersionedFile) -> bool {
    let Some(checker) = &reader.content_checker else { return false };
    let check_state = &file.content_check;
    if check_state.excluded().is_empty() {
        return false;
    }
    let mut known = checker.excluded.lock();
    let found = known.remembered.get_mut(&check_state.key);
    found.is_some_and(|found| std::mem::take(&mut found.has_stale_pages))
}

/// Forgets the file's segments that are in memory: the excluded replica may have delivered them.
fn forget_unread_segments(segments: &SharedSegments) {
    let is_here = |fetch: &SegmentFetch| matches!(fetch.state.lock().stage, FetchStage::Ready(_));
    let forgotten = segments.lock().take_where(is_here);
    drop(forgotten);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn all_opens_of_a_version_share_the_excluded_replicas() {
        let checker = ContentChecker::new(Share(1.0)).unwrap();
        let version = FileVersion { ino: 1, size: 7, mtime: (1, 2), ctime: (3, 4) };
        let open = || checker.check_state(Path::new("a"), version);
        let (earlier, later) = (open(), open());
        earlier.excluded.set_member(ReplicaId::new(1), true);
        assert!(later.excluded().contains(ReplicaId::new(1)));
        drop((earlier, later));
        for name in 0..1000 {
            drop(checker.check_state(Path::new(&name.to_string()), version));
        }
        assert!(checker.excluded.lock().open.len() < 100, "closed versions are forgotten");
    }

    #[test]
    fn a_replica_is_never_compared_with_a_later_one() {
        let set = |ids: &[usize]| {
            ids.iter().map(|id| ReplicaId::new(*id)).fold(ReplicaSet::EMPTY, ReplicaSet::with)
        };
        let deciding =
            |serving: &[usize], id| deciding_replica(set(serving), ReplicaId::new(id)).index();
        assert_eq!(deciding(&[0, 1, 2], 2), 0);
        assert_eq!(deciding(&[1, 2], 2), 1);
        assert_eq!(deciding(&[1, 2], 0), 0, "an ejected replica delivered late");
        assert_eq!(deciding(&[], 1), 1);
    }

    #[test]
    fn the_check_covers_its_share_of_fixed_segments() {
        let version = FileVersion { ino: 1, size: 7, mtime: (1, 2), ctime: (3, 4) };
        let checker = ContentChecker::new(Share(0.01)).unwrap();
        let due = |path: &str| -> Vec<u64> {
            let key = checker.check_state(Path::new(path), version).key;
            (0..100_000)
                .map(|i| i << 20)
                .filter(|start| segment_hash(key, *start) < checker.hash_limit)
                .collect()
        };
        assert!((800..1200).contains(&due("a").len()), "{}", due("a").len());
        assert_eq!(due("a"), due("a"));
        assert_ne!(due("a"), due("b"));
        assert!(ContentChecker::new(Share(0.0)).is_none());
    }
}
