//! One version of one file, and its known segments.
//!
//! When the file changes, its handles move to another [`OpenFile`]. Requests in progress on the old
//! one finish there, so no reply mixes two versions.
//!
//! *Invariant:* ownership goes one way. An open file owns its segments. A segment
//! ([`SegmentFetch`]) owns the [`VersionedFile`] that it is read from, and has a weak reference to
//! the map that contains it. So a segment in flight after its file was closed keeps only that
//! [`VersionedFile`] open.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::fetch::{SegmentFetch, SharedSegments};
use super::segment_map::SegmentMap;
use super::versioned_file::{FileParams, VersionedFile};
use crate::backend::Generation;
use crate::buffer::Reservation;
use crate::sync::{LockRank, RankedMutex, RankedMutexGuard};
use crate::volume::ByteRange;

/// A file at one version, as its handles read it.
pub struct OpenFile {
    file: Arc<VersionedFile>,
    segments: Arc<SharedSegments>,
    /// Requests that are about to add segments.
    announced: AtomicUsize,
    /// Whether there may be any segment.
    may_have_segments: AtomicBool,
}

/// The announcement of a request that adds segments; it ends when dropped.
pub(super) struct SegmentsAnnounced<'a>(&'a OpenFile);

impl Drop for SegmentsAnnounced<'_> {
    fn drop(&mut self) {
        self.0.announced.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Access to the file without its segments.
impl Deref for OpenFile {
    type Target = VersionedFile;

    fn deref(&self) -> &VersionedFile {
        &self.file
    }
}

impl OpenFile {
    /// A file that no replica has opened yet.
    pub(super) fn new(params: FileParams, replicas: usize) -> Self {
        let file = Arc::new(VersionedFile::new(params, replicas));
        let segments = RankedMutex::new(LockRank::Segments, SegmentMap::default());
        Self {
            file,
            segments: Arc::new(segments),
            announced: AtomicUsize::new(0),
            may_have_segments: AtomicBool::new(false),
        }
    }

    /// Announces that the caller is about to add segments. From now on no small read starts that
    /// does not know of them; those in flight must be adopted before ([`super::small_reads`]).
    pub(super) fn announce_segments(&self) -> SegmentsAnnounced<'_> {
        self.announced.fetch_add(1, Ordering::AcqRel);
        SegmentsAnnounced(self)
    }

    /// Whether `range` may have segments now.
    pub(super) fn may_have_segments(&self, range: ByteRange) -> bool {
        if self.announced.load(Ordering::Acquire) > 0 {
            return true;
        }
        if !self.may_have_segments.load(Ordering::Acquire) {
            return false;
        }
        let segments = self.segments.lock();
        // A request that has announced itself since has seen older segments, and not this read.
        let is_announced = self.announced.load(Ordering::Acquire) > 0;
        if segments.iter().next().is_none() && !is_announced {
            self.may_have_segments.store(false, Ordering::Release);
        }
        is_announced || segments.known(range).next().is_some()
    }

    /// Every replica has to open it again. Call this before any read.
    #[must_use]
    pub fn reopening(mut self) -> Self {
        let file = Arc::get_mut(&mut self.file).expect("no segment of it has been fetched");
        file.set_must_reopen();
        self
    }

    /// Whether every replica has to open it again.
    pub fn must_reopen(&self) -> bool {
        self.file.must_reopen()
    }

    /// The first read opens it, as no replica was asked. Call this before any read.
    #[must_use]
    pub fn opened_by_read(mut self) -> Self {
        let file = Arc::get_mut(&mut self.file).expect("no segment of it has been fetched");
        file.set_opened_by_read();
        self
    }

    /// Adds the generation that distinguishes it from other files with its inode number.
    #[must_use]
    pub fn with_generation(self, generation: Generation) -> Self {
        self.file.add_generation(generation);
        self
    }

    /// Marks it as having no name any more: replicas that do not have it open cannot open it.
    #[must_use]
    pub fn unlinked(self) -> Self {
        self.file.set_unlinked();
        self
    }

    /// Its known segments, locked.
    pub(super) fn lock_segments(&self) -> RankedMutexGuard<'_, SegmentMap<SegmentFetch>> {
        self.segments.lock()
    }

    /// Creates a fetch and inserts it into `segments`, which are this file's own.
    pub(super) fn add_fetch(
        &self,
        segments: &mut SegmentMap<SegmentFetch>,
        range: ByteRange,
        claim: Reservation,
    ) -> Arc<SegmentFetch> {
        let file = Arc::clone(&self.file);
        let fetch = Arc::new(SegmentFetch::new(file, &self.segments, range, claim));
        self.may_have_segments.store(true, Ordering::Release);
        debug_assert!(segments.known(range).next().is_none(), "a segment over another one");
        segments.insert(Arc::clone(&fetch));
        fetch
    }

    /// Whether a read has just timed out on a part of `range` that is still not in memory.
    pub(super) fn has_recent_timeout(&self, range: ByteRange, now: Instant) -> bool {
        let expired = self.recent_timeouts(range, now);
        if expired.is_empty() {
            return false;
        }
        let segments = self.lock_segments();
        let is_here = |part: ByteRange| {
            let bytes = segments.known(part).map(|(segment, fetch)| {
                let known = segment.intersect(part);
                if fetch.data().is_some() && fetch.can_serve(known) { known.len() } else { 0 }
            });
            bytes.sum::<u64>() == part.len()
        };
        !expired.into_iter().all(is_here)
    }
}
