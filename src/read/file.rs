//! One version of one file, open on as many replicas as were asked to read it.
//!
//! An [`OpenFile`] never changes its version. When the file changes, the handles
//! move on to another `OpenFile`; what was under way on the old one ends there,
//! so no reply is ever put together from two versions. A replica opens the file
//! when it is first sent a segment of it, on its own pool, and serves it only
//! if that open showed the same version.
//!
//! What the older version had open is taken along: a file that has lost its name
//! is reached no other way, and as long as it is open its inode number is not
//! given to another file.

mod opening;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::compare::Marks;
use super::expired::Expired;
use super::fetch::Fetch;
use super::origin::Origin;
use super::slot::{Held, Opened, Slot};
use crate::backend::{About, Attr, BackendFile, Generation, Identity};
use crate::placement::FileAt;
use crate::volume::{
    AtomicReplicaSet, ByteRange, FileVersion, Mode, ReplicaId, ReplicaMap, ReplicaSet,
};

/// For how long a replica that showed another version is left alone. As long as
/// an NFS client trusts the attributes of a file that has just changed
/// (acregmin, 3 s): before that it would show the same again.
const REFUSED_FOR: Duration = Duration::from_secs(3);

/// And one on which reading the file failed. A server that has been restarted
/// should not be missed for long.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// A file at one version.
pub struct OpenFile {
    about: About,
    path: PathBuf,
    version: FileVersion,
    mode: Mode,
    /// In whose name replicas open it.
    who: Mutex<Identity>,
    /// Whether what an older version has open does not count, even where it shows
    /// this version: times may be too coarse to tell two writes apart.
    anew: bool,
    /// What tells it from another file at its path.
    origin: Origin,
    /// Tells its segments from other files' in the scheduler.
    stream: u64,
    place: Place,
    replicas: ReplicaMap<Slot>,
    /// Replicas that have shown another version.
    refused: AtomicReplicaSet,
    /// What was found out of its contents.
    pub(super) marks: Marks,
    /// Replicas on which reading it has failed lately.
    failing: AtomicReplicaSet,
    /// Replicas whose open showed this version.
    open: AtomicReplicaSet,
    /// Replicas whose open has shown it at any time.
    shown: AtomicReplicaSet,
    /// Fetched or being fetched, by first byte; disjoint.
    pub(super) segments: Mutex<BTreeMap<u64, Arc<Fetch>>>,
    readers: AtomicUsize,
    /// Whether nobody will read it again: its segments are not kept, as they
    /// and the file would keep each other.
    retired: AtomicBool,
    /// Whether segments that have been read are kept for its other readers.
    keep: AtomicBool,
    /// When a segment of it was last delivered.
    pub(super) delivered: Mutex<Option<Instant>>,
    /// Segments for which a read has just passed its deadline.
    expired: Expired,
    /// It hears of segments that are dropped unread.
    pub(super) tracer: Arc<super::trace::Tracer>,
    /// Its attributes, as they were shown last.
    last_attr: Mutex<Option<Attr>>,
}

/// Where a file's chunks are, and what it is pinned to.
#[derive(Clone, Default)]
pub(super) struct Place {
    /// `None` where there is nobody to know.
    pub(super) at: Option<Arc<FileAt>>,
    /// Empty where it is not pinned.
    pub(super) pinned: ReplicaSet,
}

static STREAMS: AtomicU64 = AtomicU64::new(0);

impl OpenFile {
    /// A file that no replica has opened yet, at `version`.
    pub(super) fn new(
        path: PathBuf,
        version: FileVersion,
        mode: Mode,
        who: Identity,
        replicas: usize,
        place: Place,
    ) -> Self {
        let slots = ReplicaMap::from_fn(replicas, |_| Slot::default());
        Self {
            about: About::path(&path),
            path,
            version,
            mode,
            who: Mutex::new(who),
            anew: false,
            origin: Origin::default(),
            stream: STREAMS.fetch_add(1, Ordering::Relaxed),
            place,
            replicas: slots,
            refused: AtomicReplicaSet::default(),
            marks: Marks::default(),
            failing: AtomicReplicaSet::default(),
            open: AtomicReplicaSet::default(),
            shown: AtomicReplicaSet::default(),
            segments: Mutex::default(),
            readers: AtomicUsize::new(1),
            retired: AtomicBool::new(false),
            keep: AtomicBool::new(false),
            delivered: Mutex::new(None),
            expired: Expired::default(),
            tracer: Arc::default(),
            last_attr: Mutex::new(None),
        }
    }

    /// With what is known of its contents.
    #[must_use]
    pub(super) fn marked(self, marks: Marks) -> Self {
        Self { marks, ..self }
    }

    /// Every replica has to open it anew.
    #[must_use]
    pub fn anew(self) -> Self {
        Self { anew: true, ..self }
    }

    /// With what tells it from other files of its inode number.
    #[must_use]
    pub fn of(self, generation: Generation) -> Self {
        self.origin.is_of(generation);
        self
    }

    /// It has no name any more: replicas that do not have it open cannot open it.
    #[must_use]
    pub fn nameless(self) -> Self {
        self.origin.is_nameless();
        self
    }

    /// In whose name replicas open it.
    pub fn who(&self) -> Identity {
        self.who.lock().clone()
    }

    /// Replicas are to open it in this name from now on.
    pub fn open_for(&self, who: &Identity) {
        self.who.lock().clone_from(who);
    }

    /// Replica `id` has opened it, and its open showed this version.
    pub fn opened_by(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].held.lock();
        *held = Held::Open(file);
        self.open.put(id, true);
        self.shown.put(id, true);
        self.refused.put(id, false);
    }

    /// Replica `id` has it open, at whatever version.
    pub fn holds(&self, id: ReplicaId, file: Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].held.lock();
        if matches!(*held, Held::Nothing) {
            *held = Held::Older(file, Opened::Unknown);
        }
    }

    /// What replicas have open of it, and whether their open showed this version.
    pub fn held(&self) -> Vec<(ReplicaId, bool, Arc<dyn BackendFile>)> {
        let held = |(id, slot): (ReplicaId, &Slot)| match &*slot.held.lock() {
            Held::Nothing => None,
            Held::Older(file, _) => Some((id, false, Arc::clone(file))),
            Held::Open(file) => Some((id, true, Arc::clone(file))),
        };
        self.replicas.iter().filter_map(held).collect()
    }

    /// The file as replica `id` has it open, at whatever version it is now.
    pub fn held_by(&self, id: ReplicaId) -> Option<Arc<dyn BackendFile>> {
        // What an older version of a copy has open may be the file before it was replaced.
        if self.mode == Mode::Copies && !self.shown.get().contains(id) {
            return None;
        }
        self.replicas[id].held.lock().file().cloned()
    }

    /// Replicas that have it open, at whatever version it is now.
    pub fn held_on(&self) -> ReplicaSet {
        let held = self.replicas.iter().filter(|(id, _)| self.held_by(*id).is_some());
        held.fold(ReplicaSet::EMPTY, |all, (id, _)| all.with(id))
    }

    /// Whether `attr` of the file are from before it came to be at this version, in `shared`
    /// mode.
    pub fn is_after(&self, attr: &Attr) -> bool {
        attr.version().ctime < self.version.ctime
    }

    /// Whether `attr`, which replica `id` shows by the file's name, are those of the file
    /// that it has open, which was at this version and is at another one now. A file
    /// that was replaced keeps its version. Blocks; call it on that replica's pool.
    pub fn has_become(&self, attr: &Attr, id: ReplicaId) -> bool {
        let held = self.shown.get().contains(id).then(|| self.held_by(id)).flatten();
        let own = held.and_then(|file| file.attr().ok());
        own.is_some_and(|own| own.id == attr.id && !self.is_version(&own))
    }

    /// Takes along what `older`, a version of the same file, has open.
    pub fn inherit(&self, older: &OpenFile) {
        self.origin.inherit(&older.origin);
        *self.last_attr.lock() = *older.last_attr.lock();
        self.set_keep(older.keeps());
        self.set_readers(older.readers());
        for (id, slot) in self.replicas.iter() {
            let held = older.replicas[id].held.lock().at(older.version);
            if let Some((file, opened)) = held {
                *slot.held.lock() = Held::Older(file, opened);
            }
        }
    }

    /// Whoever has `older` open has this one open, too: it is the same data.
    pub fn takes_over(&self, older: &OpenFile) {
        for (id, slot) in older.replicas.iter() {
            if let Held::Open(file) = &*slot.held.lock() {
                self.opened_by(id, Arc::clone(file));
            }
        }
    }

    /// A read has waited for these segments until its deadline.
    pub(super) fn timed_out(&self, segments: impl Iterator<Item = ByteRange>, now: Instant) {
        self.expired.add(segments, now);
    }

    /// Whether that has just happened to something in `range` that is not in memory.
    pub(super) fn has_just_timed_out(&self, range: ByteRange, now: Instant) -> bool {
        let expired = self.expired.within(range, now);
        if expired.is_empty() {
            return false;
        }
        let segments = self.segments.lock();
        let is_here = |part: ByteRange| {
            let bytes = Self::known(&segments, part).map(|(segment, fetch)| {
                let known = segment.intersect(part);
                if fetch.data().is_some() && fetch.has(known) { known.len() } else { 0 }
            });
            bytes.sum::<u64>() == part.len()
        };
        !expired.into_iter().all(is_here)
    }

    /// A replica showed these attributes of it.
    pub fn has_shown(&self, attr: &Attr) {
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
        self.version.agrees(&attr.version(), self.mode)
    }

    /// It as the object that jobs are about.
    pub(super) fn about(&self) -> About {
        self.about
    }

    /// Where it was when it was opened, relative to the replicas' roots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its chunks are, and what it is pinned to.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Its number among all files opened.
    pub(super) fn stream(&self) -> u64 {
        self.stream
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
        let all = self.replicas.all().minus(self.marks.kept_off());
        let left = all.minus(self.refused.get());
        let well = left.minus(self.failing.get()).minus(tried);
        well.non_empty_or(left.non_empty_or(all).minus(tried))
    }

    /// Replicas that may have this version, failing ones included.
    pub(super) fn could_serve(&self) -> ReplicaSet {
        let all = self.replicas.all().minus(self.marks.kept_off());
        all.minus(self.refused.get()).non_empty_or(all)
    }

    /// Replicas that need not open it before they read it.
    pub(super) fn open_on(&self) -> ReplicaSet {
        self.open.get()
    }

    /// A replica gave less than the version promises: it is not at this version.
    pub fn refuse(&self, id: ReplicaId) {
        let slot = &self.replicas[id];
        let mut refused = slot.opening.lock();
        self.doubt(id);
        *refused = Some(Instant::now() + REFUSED_FOR);
        self.refused.put(id, true);
    }

    /// Reading it failed on a replica, perhaps for this file's sake: it is read from
    /// others for a while, and what is open there is looked at anew. False where
    /// that was known. Does not block.
    pub(super) fn fails_on(&self, id: ReplicaId, now: Instant) -> bool {
        let slot = &self.replicas[id];
        let mut held = slot.held.lock();
        if self.failing.get().contains(id) {
            return false;
        }
        self.doubt_in(&mut held, id);
        *slot.failed.lock() = Some(now);
        self.failing.put(id, true);
        true
    }

    /// Reading it hangs on a replica: it is read from others meanwhile, and for a while
    /// after. Does not block.
    pub(super) fn hangs_on(&self, id: ReplicaId, now: Instant) {
        *self.replicas[id].failed.lock() = Some(now);
        self.failing.put(id, true);
    }

    /// What is open on a replica is looked at anew before it is read from: the mount
    /// that it was opened in may be gone, and another one in its place. Does not
    /// block.
    pub(super) fn doubt(&self, id: ReplicaId) {
        self.doubt_in(&mut self.replicas[id].held.lock(), id);
    }

    fn doubt_in(&self, held: &mut Held, id: ReplicaId) {
        if let Held::Open(file) = held {
            *held = Held::Older(Arc::clone(file), Opened::At(self.version));
        }
        self.open.put(id, false);
    }

    /// What replica `id` has open as `file` is good for nothing any more: its server
    /// does not know it. Whoever wants it opens it anew.
    pub(super) fn lost(&self, id: ReplicaId, file: &Arc<dyn BackendFile>) {
        let mut held = self.replicas[id].held.lock();
        if held.file().is_some_and(|known| Arc::ptr_eq(known, file)) {
            *held = Held::Nothing;
            self.open.put(id, false);
        }
    }

    /// Lets replicas whose refusal is over be tried again.
    pub fn reconsider(&self) {
        if self.refused.get().is_empty() && self.failing.get().is_empty() {
            return;
        }
        let now = Instant::now();
        for (id, slot) in self.replicas.iter() {
            if slot.failed.lock().is_some_and(|at| now.saturating_duration_since(at) >= FAILED_FOR)
            {
                self.failing.put(id, false);
            }
            // What is being opened will speak for itself.
            let Some(refused) = slot.opening.try_lock() else { continue };
            if refused.is_some_and(|until| now >= until) {
                self.refused.put(id, false);
            }
        }
    }

    /// Nobody will read it again. Call it before its segments are forgotten.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether nobody will read it again.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
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
    pub fn set_keep(&self, keep: bool) {
        self.keep.store(keep, Ordering::Relaxed);
    }

    /// Whether segments that have been read are kept.
    pub(super) fn keeps(&self) -> bool {
        self.keep.load(Ordering::Relaxed)
    }

    /// The known segments that meet `range`, in order.
    pub(super) fn known(
        segments: &BTreeMap<u64, Arc<Fetch>>,
        range: ByteRange,
    ) -> impl Iterator<Item = (ByteRange, Arc<Fetch>)> {
        let first = segments
            .range(..=range.start)
            .next_back()
            .filter(|(_, fetch)| fetch.range.end > range.start)
            .map_or(range.start, |(start, _)| *start);
        segments
            .range(first..range.end.max(first))
            .map(|(_, fetch)| (fetch.range, Arc::clone(fetch)))
    }

    /// Forgets segments that have given away what `range` wants of them.
    pub(super) fn drop_gone(segments: &mut BTreeMap<u64, Arc<Fetch>>, range: ByteRange) {
        let gone = |(part, fetch): (ByteRange, Arc<Fetch>)| {
            let wanted = part.intersect(range);
            (!wanted.is_empty() && !fetch.has(wanted)).then_some(part.start)
        };
        let gone: Vec<u64> = Self::known(segments, range).filter_map(gone).collect();
        for start in gone {
            segments.remove(&start);
        }
    }

    /// Forgets a segment, if it is the one that is known there.
    pub(super) fn forget(&self, fetch: &Arc<Fetch>) {
        Self::forget_in(&mut self.segments.lock(), fetch);
    }

    /// The same with the segments of its file, locked.
    pub(super) fn forget_in(segments: &mut BTreeMap<u64, Arc<Fetch>>, fetch: &Arc<Fetch>) {
        if segments.get(&fetch.range.start).is_some_and(|known| Arc::ptr_eq(known, fetch)) {
            segments.remove(&fetch.range.start);
        }
    }
}
