//! One version of one file, open on the replicas that were asked to read it.
//!
//! A [`VersionedFile`] never changes its version. A replica opens the file, on its own pool, when
//! the first segment of it is dispatched there. The replica serves the file only if that open
//! showed the same version.
//!
//! A new version takes over the descriptors of the older one. A file without a name can be reached
//! in no other way, and while it is open its inode number is not reused.

mod replica_open;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::content_check_state::ContentCheckState;
use super::delivery_time::DeliveryTime;
use super::file_identity::FileIdentity;
use super::replica_slot::{Descriptor, LastVersion, ReplicaSlot};
use super::segment_timeouts::SegmentTimeouts;
use super::tracer::Tracer;
use crate::backend::{Attr, BackendFile, Credentials, Generation, PathKey};
use crate::buffer::MIN_SPLICE_BYTES;
use crate::placement::LocatedFile;
use crate::volume::{
    AtomicReplicaSet, ByteRange, FileVersion, ReplicaId, ReplicaMap, ReplicaSet, VolumeMode,
};

/// How long a replica that showed another version is not asked. This is how long an NFS client
/// trusts the attributes of a recently changed file (acregmin, 3 s): until then it would show the
/// same again.
const VERSION_BAN: Duration = Duration::from_secs(3);

/// How long a replica is not asked after a read of the file failed or hung there. It is short, so
/// that a restarted server comes back soon.
const FAILURE_BAN: Duration = Duration::from_secs(1);

/// A file at one version.
pub struct VersionedFile {
    path_key: PathKey,
    path: PathBuf,
    version: FileVersion,
    mode: VolumeMode,
    /// The credentials under which replicas open it.
    credentials: Mutex<Credentials>,
    /// Whether an older version's descriptors must be opened again even if they show this version:
    /// timestamps may be too coarse to distinguish two writes.
    must_reopen: bool,
    /// Whether its open asked no replica.
    is_opened_by_read: bool,
    /// Distinguishes it from another file at its path.
    file_identity: FileIdentity,
    /// Identifies its segments in the scheduler.
    file_number: u64,
    placement_hints: PlacementHints,
    replicas: ReplicaMap<ReplicaSlot>,
    /// Replicas that have shown another version.
    version_banned: AtomicReplicaSet,
    /// The results of its content checks.
    pub(super) content_check: ContentCheckState,
    /// Replicas on which a read of it failed or hung recently.
    failure_banned: AtomicReplicaSet,
    /// Replicas whose open showed this version.
    verified: AtomicReplicaSet,
    /// Replicas whose open has shown this version at any time.
    ever_verified: AtomicReplicaSet,
    readers: AtomicUsize,
    /// Whether it will not be read again: its segments are not kept.
    is_retired: AtomicBool,
    /// Whether segments that have been read are kept for other readers of the file.
    keep_segments: AtomicBool,
    /// The latest reads in a row that were small, up to [`SMALL_RUN`].
    small_run: AtomicU8,
    /// When a segment of it was last delivered.
    pub(super) last_delivery: DeliveryTime,
    /// Segments on which a read has just timed out.
    timeouts: SegmentTimeouts,
    /// Reports segments that are dropped unread.
    pub(super) tracer: Arc<Tracer>,
    /// The attributes that a replica showed last.
    last_attr: Mutex<Option<Attr>>,
}

/// A file's placement, and the replicas to which it is pinned.
#[derive(Clone, Default)]
pub(super) struct PlacementHints {
    /// `None` if no provider can locate it.
    pub(super) located_file: Option<Arc<LocatedFile>>,
    /// Empty if it is not pinned.
    pub(super) pinned: ReplicaSet,
}

/// The properties of a file before a replica opens it.
pub(super) struct FileParams {
    /// Relative to the replicas' roots.
    pub(super) path: PathBuf,
    pub(super) version: FileVersion,
    pub(super) mode: VolumeMode,
    /// The credentials under which replicas open it.
    pub(super) credentials: Credentials,
    pub(super) placement_hints: PlacementHints,
    pub(super) content_check: ContentCheckState,
    /// Reports segments that are dropped unread.
    pub(super) tracer: Arc<Tracer>,
}

/// So many small reads in a row show that a file is read in small parts.
const SMALL_RUN: u8 = 2;

static NEXT_FILE_NUMBER: AtomicU64 = AtomicU64::new(0);

impl VersionedFile {
    /// A file that no replica has opened yet.
    pub(super) fn new(params: FileParams, replicas: usize) -> Self {
        let slots = ReplicaMap::from_fn(replicas, |_| ReplicaSlot::default());
        Self {
            path_key: PathKey::from_path(&params.path),
            path: params.path,
            version: params.version,
            mode: params.mode,
            credentials: Mutex::new(params.credentials),
            must_reopen: false,
            is_opened_by_read: false,
            file_identity: FileIdentity::default(),
            file_number: NEXT_FILE_NUMBER.fetch_add(1, Ordering::Relaxed),
            placement_hints: params.placement_hints,
            replicas: slots,
            version_banned: AtomicReplicaSet::default(),
            content_check: params.content_check,
            failure_banned: AtomicReplicaSet::default(),
            verified: AtomicReplicaSet::default(),
            ever_verified: AtomicReplicaSet::default(),
            readers: AtomicUsize::new(1),
            is_retired: AtomicBool::new(false),
            keep_segments: AtomicBool::new(false),
            small_run: AtomicU8::new(0),
            last_delivery: DeliveryTime::default(),
            timeouts: SegmentTimeouts::default(),
            tracer: params.tracer,
            last_attr: Mutex::new(None),
        }
    }

    /// No replica was asked when it was opened, so the first read opens it.
    pub(super) fn set_opened_by_read(&mut self) {
        self.is_opened_by_read = true;
    }

    /// Whether no replica has opened it yet, and the first read is about to.
    fn is_unopened(&self) -> bool {
        self.is_opened_by_read && self.ever_verified.get().is_empty()
    }

    /// Every replica has to open it again.
    pub(super) fn set_must_reopen(&mut self) {
        self.must_reopen = true;
    }

    pub(super) fn must_reopen(&self) -> bool {
        self.must_reopen
    }

    /// Adds a generation that distinguishes it from other files with its inode number.
    pub(super) fn add_generation(&self, generation: Generation) {
        self.file_identity.add_generation(generation);
    }

    /// Marks it as having no name any more: replicas that do not have it open cannot open it.
    pub(super) fn set_unlinked(&self) {
        self.file_identity.set_unlinked();
    }

    /// The credentials under which replicas open it.
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Sets the credentials for later opens.
    pub fn set_credentials(&self, who: &Credentials) {
        self.credentials.lock().clone_from(who);
    }

    /// Records that replica `id` has opened it, and that this open showed this version.
    pub fn record_verified_open(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        *held = Descriptor::Verified(file);
        self.verified.set_member(id, true);
        self.ever_verified.set_member(id, true);
        self.version_banned.set_member(id, false);
    }

    /// Records that replica `id` has it open, at any version.
    pub fn record_open(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        if matches!(*held, Descriptor::Closed) {
            *held = Descriptor::Unverified(file, LastVersion::Unknown);
        }
    }

    /// The open files of all replicas; the flag says whether the open showed this version.
    pub fn open_descriptors(&self) -> Vec<(ReplicaId, bool, Arc<dyn BackendFile>)> {
        let held = |(id, slot): (ReplicaId, &ReplicaSlot)| match &*slot.descriptor.lock() {
            Descriptor::Closed => None,
            Descriptor::Unverified(file, _) => Some((id, false, Arc::clone(file))),
            Descriptor::Verified(file) => Some((id, true, Arc::clone(file))),
        };
        self.replicas.iter().filter_map(held).collect()
    }

    /// The open file of replica `id`, at its current version.
    pub fn descriptor_on(&self, id: ReplicaId) -> Option<Arc<dyn BackendFile>> {
        // For a copy, an older version's descriptor may be of a file that has since been replaced.
        if self.mode == VolumeMode::Copies && !self.ever_verified.get().contains(id) {
            return None;
        }
        self.replicas[id].descriptor.lock().file().cloned()
    }

    /// The open file of replica `id` if it has this version, and is not excluded.
    pub(super) fn verified_on(&self, id: ReplicaId) -> Option<Arc<dyn BackendFile>> {
        match &*self.replicas[id].descriptor.lock() {
            Descriptor::Verified(file) if !self.is_excluded(id) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// Replicas that have it open, at its current version.
    pub fn replicas_with_descriptor(&self) -> ReplicaSet {
        let held = self.replicas.iter().filter(|(id, _)| self.descriptor_on(*id).is_some());
        held.fold(ReplicaSet::EMPTY, |all, (id, _)| all.with(id))
    }

    /// Whether `attr` are older than this version of the file. Use it in `shared` mode only.
    pub fn is_newer_than(&self, attr: &Attr) -> bool {
        attr.version().ctime < self.version.ctime
    }

    /// Whether the file changed in place: replica `id` has it open, its open showed this version,
    /// and it has another version now. `attr`, found under the file's name, must belong to the same
    /// file. A replaced file keeps its version. Blocks; call it on that replica's pool.
    pub fn is_changed_in_place(&self, attr: &Attr, id: ReplicaId) -> bool {
        let held = self.ever_verified.get().contains(id).then(|| self.descriptor_on(id)).flatten();
        let own = held.and_then(|file| file.attr().ok());
        own.is_some_and(|own| own.id == attr.id && !self.is_version(&own))
    }

    /// Takes over the descriptors of `older`, another version of the same file.
    pub fn inherit_descriptors(&self, older: &VersionedFile) {
        self.file_identity.inherit(&older.file_identity);
        *self.last_attr.lock() = *older.last_attr.lock();
        self.set_keep_segments(older.should_keep_segments());
        self.set_readers(older.readers());
        for (id, slot) in self.replicas.iter() {
            let held = older.replicas[id].descriptor.lock().with_last_version(older.version);
            if let Some((file, opened)) = held {
                *slot.descriptor.lock() = Descriptor::Unverified(file, opened);
            }
        }
    }

    /// Takes over the verified descriptors of `older`, which has the same data.
    pub fn adopt_open_files(&self, older: &VersionedFile) {
        for (id, slot) in older.replicas.iter() {
            if let Descriptor::Verified(file) = &*slot.descriptor.lock() {
                self.record_verified_open(id, Arc::clone(file));
            }
        }
    }

    /// Records that a read has timed out on these segments.
    pub(super) fn record_timeout(&self, segments: impl Iterator<Item = ByteRange>, now: Instant) {
        self.timeouts.add(segments, now);
    }

    /// The parts of `range` on which a read has just timed out.
    pub(super) fn recent_timeouts(&self, range: ByteRange, now: Instant) -> Vec<ByteRange> {
        self.timeouts.within(range, now)
    }

    /// Records the attributes that a replica showed.
    pub fn set_last_attr(&self, attr: &Attr) {
        *self.last_attr.lock() = Some(*attr);
    }

    /// The attributes that a replica showed last.
    pub fn last_attr(&self) -> Option<Attr> {
        *self.last_attr.lock()
    }

    /// The version of every byte that is read from it.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    /// Whether these attributes belong to this version.
    pub fn is_version(&self, attr: &Attr) -> bool {
        self.version.is_same_version(&attr.version(), self.mode)
    }

    /// Its key for jobs on the replicas' pools.
    pub(super) fn path_key(&self) -> PathKey {
        self.path_key
    }

    /// Its path when it was opened, relative to the replicas' roots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn placement_hints(&self) -> &PlacementHints {
        &self.placement_hints
    }

    /// Its number among all opened files.
    pub(super) fn file_number(&self) -> u64 {
        self.file_number
    }

    /// Replicas that may read it: those that have not shown another version and on which no read
    /// failed recently. If there are none, it falls back to the others, so that the error comes
    /// from a replica. Replicas with different bytes are never included.
    pub fn candidates(&self) -> ReplicaSet {
        self.candidates_after(ReplicaSet::EMPTY)
    }

    /// The same, after attempts at `tried` have failed. A replica that failed earlier may work
    /// again.
    pub(super) fn candidates_after(&self, tried: ReplicaSet) -> ReplicaSet {
        let all = self.replicas.all().minus(self.content_check.excluded());
        let left = all.minus(self.version_banned.get());
        let well = left.minus(self.failure_banned.get()).minus(tried);
        well.non_empty_or(left.non_empty_or(all).minus(tried))
    }

    /// Replicas that have not shown another version lately and on which no read failed lately.
    pub(super) fn candidates_not_banned(&self) -> ReplicaSet {
        let all = self.replicas.all().minus(self.content_check.excluded());
        all.minus(self.version_banned.get()).minus(self.failure_banned.get())
    }

    /// Replicas that may have this version, including those on which a read failed.
    pub(super) fn candidates_with_failing(&self) -> ReplicaSet {
        let all = self.replicas.all().minus(self.content_check.excluded());
        all.minus(self.version_banned.get()).non_empty_or(all)
    }

    /// Whether its bytes on replica `id` are known to differ from the deciding replica's.
    pub(super) fn is_excluded(&self, id: ReplicaId) -> bool {
        self.content_check.excluded().contains(id)
    }

    /// Replicas that can read it without opening it first.
    pub(super) fn verified_replicas(&self) -> ReplicaSet {
        self.verified.get()
    }

    /// Bans a replica that delivered less than the version promises: it does not have this version.
    pub fn ban_for_version(&self, id: ReplicaId) {
        let slot = &self.replicas[id];
        let mut refused = slot.banned_until.lock();
        self.mark_unverified(id);
        *refused = Some(Instant::now() + VERSION_BAN);
        self.version_banned.set_member(id, true);
    }

    /// A read failed on a replica, perhaps because of this file. Other replicas serve it for a
    /// while, and the descriptor must be verified again. False if the replica was already banned.
    /// Does not block.
    pub(super) fn ban_for_failure(&self, id: ReplicaId, now: Instant) -> bool {
        let slot = &self.replicas[id];
        let mut held = slot.descriptor.lock();
        if self.failure_banned.get().contains(id) {
            return false;
        }
        self.mark_unverified_locked(&mut held, id);
        *slot.failed_at.lock() = Some(now);
        self.failure_banned.set_member(id, true);
        true
    }

    /// A read of it hangs on a replica. Other replicas serve it until the call returns, and for a
    /// while after. Does not block.
    pub(super) fn ban_for_hang(&self, id: ReplicaId, now: Instant) {
        *self.replicas[id].failed_at.lock() = Some(now);
        self.failure_banned.set_member(id, true);
    }

    /// A replica's descriptor must be verified again before the next read: its mount may be gone
    /// and another one in its place. Does not block.
    pub(super) fn mark_unverified(&self, id: ReplicaId) {
        self.mark_unverified_locked(&mut self.replicas[id].descriptor.lock(), id);
    }

    fn mark_unverified_locked(&self, held: &mut Descriptor, id: ReplicaId) {
        if let Descriptor::Verified(file) = held {
            *held = Descriptor::Unverified(Arc::clone(file), LastVersion::Known(self.version));
        }
        self.verified.set_member(id, false);
    }

    /// Drops the descriptor `file` of replica `id`, because its server no longer knows it. The next
    /// read opens the file again.
    pub(super) fn drop_stale(&self, id: ReplicaId, file: &Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        if held.file().is_some_and(|known| Arc::ptr_eq(known, file)) {
            *held = Descriptor::Closed;
            self.verified.set_member(id, false);
        }
    }

    /// Lifts the bans whose time has passed.
    pub fn expire_bans(&self) {
        if self.version_banned.get().is_empty() && self.failure_banned.get().is_empty() {
            return;
        }
        let now = Instant::now();
        for (id, slot) in self.replicas.iter() {
            if slot
                .failed_at
                .lock()
                .is_some_and(|at| now.saturating_duration_since(at) >= FAILURE_BAN)
            {
                self.failure_banned.set_member(id, false);
            }
            // Skip a file that is being opened: the result of the open decides.
            let Some(_alone) = slot.opening.try_lock() else { continue };
            let refused = slot.banned_until.lock();
            if refused.is_some_and(|until| now >= until) {
                self.version_banned.set_member(id, false);
            }
        }
    }

    /// Marks that it will not be read again. Call this before its segments are forgotten.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Whether it will not be read again.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Sets the number of handles that read it.
    pub fn set_readers(&self, readers: usize) {
        self.readers.store(readers, Ordering::Relaxed);
    }

    /// The number of handles that read it.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Whether to keep segments that have been read for its other readers. Not worth it if the
    /// kernel caches the file.
    pub fn set_keep_segments(&self, keep: bool) {
        self.keep_segments.store(keep, Ordering::Relaxed);
    }

    /// Records a read of it.
    pub(super) fn record_part(&self, bytes: u64) {
        let before = self.small_run.load(Ordering::Relaxed);
        let is_small = bytes < MIN_SPLICE_BYTES as u64;
        let run = if is_small { SMALL_RUN.min(before + 1) } else { 0 };
        if run != before {
            self.small_run.store(run, Ordering::Relaxed);
        }
    }

    /// Whether its readers take small parts of segments. A single small one may be the rest of a
    /// large read.
    pub(super) fn has_small_parts(&self) -> bool {
        self.small_run.load(Ordering::Relaxed) >= SMALL_RUN
    }

    /// Whether segments that have been read are kept.
    pub(super) fn should_keep_segments(&self) -> bool {
        self.keep_segments.load(Ordering::Relaxed)
    }
}
