//! One version of one file, open on as many replicas as were asked to read it.
//!
//! A [`VersionedFile`] never changes its version. A replica opens the file
//! when it is first sent a segment of it, on its own pool, and serves it only
//! if that open showed the same version.
//!
//! What the older version had open is taken along: a file that has lost its name
//! is reached no other way, and as long as it is open its inode number is not
//! given to another file.

mod replica_open;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::content_check_state::ContentCheckState;
use super::file_identity::FileIdentity;
use super::replica_slot::{Descriptor, LastVersion, ReplicaSlot};
use super::segment_timeouts::SegmentTimeouts;
use super::tracer::Tracer;
use crate::backend::{Attr, BackendFile, Credentials, Generation, PathKey};
use crate::placement::LocatedFile;
use crate::volume::{
    AtomicReplicaSet, ByteRange, FileVersion, ReplicaId, ReplicaMap, ReplicaSet, VolumeMode,
};

/// For how long a replica that showed another version is left alone. As long as
/// an NFS client trusts the attributes of a file that has just changed
/// (acregmin, 3 s): before that it would show the same again.
const VERSION_BAN: Duration = Duration::from_secs(3);

/// And one on which reading the file failed. A server that has been restarted
/// should not be missed for long.
const FAILURE_BAN: Duration = Duration::from_secs(1);

/// A file at one version.
pub struct VersionedFile {
    path_key: PathKey,
    path: PathBuf,
    version: FileVersion,
    mode: VolumeMode,
    /// In whose name replicas open it.
    credentials: Mutex<Credentials>,
    /// Whether what an older version has open does not count, even where it shows
    /// this version: times may be too coarse to tell two writes apart.
    must_reopen: bool,
    /// What tells it from another file at its path.
    file_identity: FileIdentity,
    /// Tells its segments from other files' in the scheduler.
    file_number: u64,
    placement_hints: PlacementHints,
    replicas: ReplicaMap<ReplicaSlot>,
    /// Replicas that have shown another version.
    version_banned: AtomicReplicaSet,
    /// What was found out of its contents.
    pub(super) content_check: ContentCheckState,
    /// Replicas on which reading it has failed lately.
    failure_banned: AtomicReplicaSet,
    /// Replicas whose open showed this version.
    verified: AtomicReplicaSet,
    /// Replicas whose open has shown it at any time.
    ever_verified: AtomicReplicaSet,
    readers: AtomicUsize,
    /// Whether nobody will read it again: its segments are not kept.
    is_retired: AtomicBool,
    /// Whether segments that have been read are kept for its other readers.
    keep_segments: AtomicBool,
    /// When a segment of it was last delivered.
    pub(super) last_delivery: Mutex<Option<Instant>>,
    /// Segments for which a read has just passed its deadline.
    timeouts: SegmentTimeouts,
    /// It hears of segments that are dropped unread.
    pub(super) tracer: Arc<Tracer>,
    /// Its attributes, as they were shown last.
    last_attr: Mutex<Option<Attr>>,
}

/// Where a file's chunks are, and what it is pinned to.
#[derive(Clone, Default)]
pub(super) struct PlacementHints {
    /// `None` where there is nobody to know.
    pub(super) located_file: Option<Arc<LocatedFile>>,
    /// Empty where it is not pinned.
    pub(super) pinned: ReplicaSet,
}

/// What is known of a file before a replica opens it.
pub(super) struct FileParams {
    /// Relative to the replicas' roots.
    pub(super) path: PathBuf,
    pub(super) version: FileVersion,
    pub(super) mode: VolumeMode,
    /// In whose name replicas open it.
    pub(super) credentials: Credentials,
    pub(super) placement_hints: PlacementHints,
    pub(super) content_check: ContentCheckState,
    /// It hears of segments that are dropped unread.
    pub(super) tracer: Arc<Tracer>,
}

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
            last_delivery: Mutex::new(None),
            timeouts: SegmentTimeouts::default(),
            tracer: params.tracer,
            last_attr: Mutex::new(None),
        }
    }

    /// Every replica has to open it once more.
    pub(super) fn set_must_reopen(&mut self) {
        self.must_reopen = true;
    }

    /// What tells it from other files of its inode number.
    pub(super) fn add_generation(&self, generation: Generation) {
        self.file_identity.add_generation(generation);
    }

    /// It has no name any more: replicas that do not have it open cannot open it.
    pub(super) fn set_unlinked(&self) {
        self.file_identity.set_unlinked();
    }

    /// In whose name replicas open it.
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Replicas are to open it in this name from now on.
    pub fn set_credentials(&self, who: &Credentials) {
        self.credentials.lock().clone_from(who);
    }

    /// Replica `id` has opened it, and its open showed this version.
    pub fn record_verified_open(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        *held = Descriptor::Verified(file);
        self.verified.set_member(id, true);
        self.ever_verified.set_member(id, true);
        self.version_banned.set_member(id, false);
    }

    /// Replica `id` has it open, at whatever version.
    pub fn record_open(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        if matches!(*held, Descriptor::Closed) {
            *held = Descriptor::Unverified(file, LastVersion::Unknown);
        }
    }

    /// What replicas have open of it, and whether their open showed this version.
    pub fn open_descriptors(&self) -> Vec<(ReplicaId, bool, Arc<dyn BackendFile>)> {
        let held = |(id, slot): (ReplicaId, &ReplicaSlot)| match &*slot.descriptor.lock() {
            Descriptor::Closed => None,
            Descriptor::Unverified(file, _) => Some((id, false, Arc::clone(file))),
            Descriptor::Verified(file) => Some((id, true, Arc::clone(file))),
        };
        self.replicas.iter().filter_map(held).collect()
    }

    /// The file as replica `id` has it open, at whatever version it is now.
    pub fn descriptor_on(&self, id: ReplicaId) -> Option<Arc<dyn BackendFile>> {
        // What an older version of a copy has open may be the file before it was replaced.
        if self.mode == VolumeMode::Copies && !self.ever_verified.get().contains(id) {
            return None;
        }
        self.replicas[id].descriptor.lock().file().cloned()
    }

    /// Replicas that have it open, at whatever version it is now.
    pub fn replicas_with_descriptor(&self) -> ReplicaSet {
        let held = self.replicas.iter().filter(|(id, _)| self.descriptor_on(*id).is_some());
        held.fold(ReplicaSet::EMPTY, |all, (id, _)| all.with(id))
    }

    /// Whether `attr` of the file are from before it came to be at this version, in `shared`
    /// mode.
    pub fn is_newer_than(&self, attr: &Attr) -> bool {
        attr.version().ctime < self.version.ctime
    }

    /// Whether `attr`, which replica `id` shows by the file's name, are those of the file
    /// that it has open, which was at this version and is at another one now. A file
    /// that was replaced keeps its version. Blocks; call it on that replica's pool.
    pub fn is_changed_in_place(&self, attr: &Attr, id: ReplicaId) -> bool {
        let held = self.ever_verified.get().contains(id).then(|| self.descriptor_on(id)).flatten();
        let own = held.and_then(|file| file.attr().ok());
        own.is_some_and(|own| own.id == attr.id && !self.is_version(&own))
    }

    /// Takes along what `older`, a version of the same file, has open.
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

    /// Whoever has `older` open has this one open, too: it is the same data.
    pub fn adopt_open_files(&self, older: &VersionedFile) {
        for (id, slot) in older.replicas.iter() {
            if let Descriptor::Verified(file) = &*slot.descriptor.lock() {
                self.record_verified_open(id, Arc::clone(file));
            }
        }
    }

    /// A read has waited for these segments until its deadline.
    pub(super) fn record_timeout(&self, segments: impl Iterator<Item = ByteRange>, now: Instant) {
        self.timeouts.add(segments, now);
    }

    /// The parts of `range` for which that has just happened.
    pub(super) fn recent_timeouts(&self, range: ByteRange, now: Instant) -> Vec<ByteRange> {
        self.timeouts.within(range, now)
    }

    /// A replica showed these attributes of it.
    pub fn set_last_attr(&self, attr: &Attr) {
        *self.last_attr.lock() = Some(*attr);
    }

    /// The attributes that were shown last.
    pub fn last_attr(&self) -> Option<Attr> {
        *self.last_attr.lock()
    }

    /// The version that every byte read from here belongs to.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    /// Whether these attributes are of its version.
    pub fn is_version(&self, attr: &Attr) -> bool {
        self.version.is_same_version(&attr.version(), self.mode)
    }

    /// It as the object that jobs are about.
    pub(super) fn path_key(&self) -> PathKey {
        self.path_key
    }

    /// Where it was when it was opened, relative to the replicas' roots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its chunks are, and what it is pinned to.
    pub(super) fn placement_hints(&self) -> &PlacementHints {
        &self.placement_hints
    }

    /// Its number among all files opened.
    pub(super) fn file_number(&self) -> u64 {
        self.file_number
    }

    /// Replicas that may read it: those that have not shown another version, and
    /// have not failed. Others where there are none of these, so that the error is
    /// theirs and not ours; but never those whose bytes are others.
    pub fn candidates(&self) -> ReplicaSet {
        self.candidates_after(ReplicaSet::EMPTY)
    }

    /// The same, where none of `tried` could read it. A replica that failed before may be
    /// well again.
    pub(super) fn candidates_after(&self, tried: ReplicaSet) -> ReplicaSet {
        let all = self.replicas.all().minus(self.content_check.excluded());
        let left = all.minus(self.version_banned.get());
        let well = left.minus(self.failure_banned.get()).minus(tried);
        well.non_empty_or(left.non_empty_or(all).minus(tried))
    }

    /// Replicas that may have this version, failing ones included.
    pub(super) fn candidates_with_failing(&self) -> ReplicaSet {
        let all = self.replicas.all().minus(self.content_check.excluded());
        all.minus(self.version_banned.get()).non_empty_or(all)
    }

    /// Replicas that need not open it before they read it.
    pub(super) fn verified_replicas(&self) -> ReplicaSet {
        self.verified.get()
    }

    /// A replica gave less than the version promises: it is not at this version.
    pub fn ban_for_version(&self, id: ReplicaId) {
        let slot = &self.replicas[id];
        let mut refused = slot.banned_until.lock();
        self.mark_unverified(id);
        *refused = Some(Instant::now() + VERSION_BAN);
        self.version_banned.set_member(id, true);
    }

    /// Reading it failed on a replica, perhaps for this file's sake: it is read from
    /// others for a while, and what is open there is looked at anew. False where
    /// that was known. Does not block.
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

    /// Reading it hangs on a replica: it is read from others meanwhile, and for a while
    /// after. Does not block.
    pub(super) fn ban_for_hang(&self, id: ReplicaId, now: Instant) {
        *self.replicas[id].failed_at.lock() = Some(now);
        self.failure_banned.set_member(id, true);
    }

    /// What is open on a replica is looked at anew before it is read from: the mount
    /// that it was opened in may be gone, and another one in its place. Does not
    /// block.
    pub(super) fn mark_unverified(&self, id: ReplicaId) {
        self.mark_unverified_locked(&mut self.replicas[id].descriptor.lock(), id);
    }

    fn mark_unverified_locked(&self, held: &mut Descriptor, id: ReplicaId) {
        if let Descriptor::Verified(file) = held {
            *held = Descriptor::Unverified(Arc::clone(file), LastVersion::Known(self.version));
        }
        self.verified.set_member(id, false);
    }

    /// What replica `id` has open as `file` is good for nothing any more: its server
    /// does not know it. Whoever wants it opens it anew.
    pub(super) fn drop_stale(&self, id: ReplicaId, file: &Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].descriptor.lock();
        if held.file().is_some_and(|known| Arc::ptr_eq(known, file)) {
            *held = Descriptor::Closed;
            self.verified.set_member(id, false);
        }
    }

    /// Lets replicas whose refusal is over be tried again.
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
            // What is being opened will speak for itself.
            let Some(refused) = slot.banned_until.try_lock() else { continue };
            if refused.is_some_and(|until| now >= until) {
                self.version_banned.set_member(id, false);
            }
        }
    }

    /// Nobody will read it again. Call it before its segments are forgotten.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Whether nobody will read it again.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// So many handles read it.
    pub fn set_readers(&self, readers: usize) {
        self.readers.store(readers, Ordering::Relaxed);
    }

    /// How many handles read it.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Keep segments that have been read for its other readers, or do not. Not
    /// worth it where the kernel caches them.
    pub fn set_keep_segments(&self, keep: bool) {
        self.keep_segments.store(keep, Ordering::Relaxed);
    }

    /// Whether segments that have been read are kept.
    pub(super) fn should_keep_segments(&self) -> bool {
        self.keep_segments.load(Ordering::Relaxed)
    }
}
