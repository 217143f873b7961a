//! What a name stood for when a mount last asked its server.
//!
//! Another client replaces a file. One replica's mount shows the new one, and the others'
//! mounts show the old one until their caches expire. Once the new one was seen, a look at
//! another replica would go back in time: a name would stand for the new file and then for
//! the old one again, and an open that found the old one gone would be tried again with the
//! same answer. One NFS mount never goes back.
//!
//! So a mount that shows another object than is known by a name, or none, asks its server
//! for the directory before it is believed, and its answer is remembered. For a minute every
//! mount that contradicts that answer has to ask its server, too. The replica that found an
//! object is asked first about its name. One that found none is not: it may have lost the
//! file, and the others would not be heard.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Fs, Ino};
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, EntryRef, InodeIdentity, ObjectRef,
};
use crate::volume::{ReplicaId, VolumeMode};

/// For so long a mount may believe in a name: an NFS mount does for 60 s (acdirmax).
const NAME_CACHE_LIFETIME: Duration = Duration::from_secs(60);

/// So many names are remembered. The one that was noted first is forgotten first.
const MAX_TRACKED_NAMES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names of which some mount has learned from its server what they stand for.
pub(super) struct NameFreshness {
    /// Whether there are any.
    is_nonempty: AtomicBool,
    names: Mutex<LruCache<[u8; 16], ServerAnswer>>,
}

/// What a replica's server showed.
#[derive(Clone, Copy)]
struct ServerAnswer {
    replica: ReplicaId,
    /// `None`: nothing has the name, or what had it was gone when it was opened.
    object: Option<InodeIdentity>,
    recorded_at: Instant,
}

impl ServerAnswer {
    /// Whether `shown` is what the server showed.
    fn is_consistent_with(&self, shown: Option<&Attr>) -> bool {
        match (&self.object, shown) {
            (Some(object), Some(attr)) => object.is_match(attr),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Default for NameFreshness {
    fn default() -> Self {
        Self {
            is_nonempty: AtomicBool::new(false),
            names: Mutex::new(LruCache::new(MAX_TRACKED_NAMES)),
        }
    }
}

fn key(path: &Path) -> [u8; 16] {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&hash.as_bytes()[..16]);
    key
}

impl NameFreshness {
    fn record(&self, path: &Path, noted: ServerAnswer) {
        let mut names = self.names.lock();
        names.push(key(path), noted);
        self.is_nonempty.store(true, Ordering::Relaxed);
    }

    /// The name stands for what was known before.
    fn forget(&self, path: &Path) {
        if self.is_nonempty.load(Ordering::Relaxed) {
            self.names.lock().pop(&key(path));
        }
    }

    /// The replica to be asked first about `path`, if there is one.
    pub(super) fn preferred_replica(&self, path: &Path, now: Instant) -> Option<ReplicaId> {
        let noted = self.get(path, now)?;
        noted.object.map(|_| noted.replica)
    }

    fn get(&self, path: &Path, now: Instant) -> Option<ServerAnswer> {
        if !self.is_nonempty.load(Ordering::Relaxed) {
            return None;
        }
        let mut names = self.names.lock();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= NAME_CACHE_LIFETIME;
        while names.peek_lru().is_some_and(|(_, noted)| is_old(noted.recorded_at)) {
            names.pop_lru();
        }
        self.is_nonempty.store(!names.is_empty(), Ordering::Relaxed);
        // A look does not make it younger.
        names.peek(&key(path)).filter(|noted| !is_old(noted.recorded_at)).copied()
    }
}

/// A replica that is asked about a path.
#[derive(Clone, Copy)]
pub(super) struct ReplicaPath<'a> {
    pub(super) replica: ReplicaId,
    pub(super) backend: &'a dyn Backend,
    pub(super) path: &'a Path,
}

impl Fs {
    /// Opens what is at the path, where `ino` was found. Blocks, as all these do: call it on
    /// that replica's pool.
    pub(super) fn open_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        self.with_revalidation(at, || Some(ino), || at.backend.open(at.path), |(_, attr)| attr)
    }

    /// Attributes of what is at the path, where `ino` was found.
    pub(super) fn stat_inode_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<Attr, BackendError> {
        self.with_revalidation(at, || Some(ino), || at.backend.stat(at.path), |attr| attr)
    }

    /// Attributes of what has this name in `parent`, which is at the path.
    pub(super) fn stat_revalidated(
        &self,
        (parent, name): (Ino, &OsStr),
        at: ReplicaPath<'_>,
        named: &EntryRef,
    ) -> Result<Attr, BackendError> {
        let known = || self.inodes.lock().child(parent, name);
        self.with_revalidation(at, known, || at.backend.stat_entry(named), |attr| attr)
    }

    /// What `look` shows; what it shows then, where the mount first had to ask its server.
    fn with_revalidation<T>(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn() -> Option<Ino>,
        look: impl Fn() -> Result<T, BackendError>,
        attr: impl Fn(&T) -> &Attr,
    ) -> Result<T, BackendError> {
        let shown = look();
        if self.policy.mode != VolumeMode::Shared {
            // The first replica decides, whatever it shows.
            return shown;
        }
        let object = match &shown {
            Ok(shown) => Some(attr(shown)),
            Err(error) if is_missing_name_error(*error) => None,
            Err(_) => return shown,
        };
        if !self.must_revalidate(at, &known, object) {
            return shown;
        }
        refresh_parent(at.backend, at.path);
        let shown = look();
        match &shown {
            Ok(shown) => self.record_object_at(at.replica, at.path, known(), attr(shown)),
            Err(error) if is_missing_name_error(*error) => {
                self.record_server_answer(at.replica, at.path, None)
            }
            Err(_) => {}
        }
        shown
    }

    /// Whether a mount that shows this object, or none, has to ask its server first.
    fn must_revalidate(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn() -> Option<Ino>,
        shown: Option<&Attr>,
    ) -> bool {
        match self.name_freshness.get(at.path, Instant::now()) {
            Some(noted) if noted.is_consistent_with(shown) => return false,
            Some(noted) if noted.replica != at.replica || noted.object.is_none() => return true,
            _ => {}
        }
        let Some(known) = known() else { return false };
        shown.is_none_or(|attr| !self.inodes.lock().is_same(known, at.replica, attr))
    }

    /// The server of `replica` shows `attr` at `path`, where `known` was.
    pub(super) fn record_object_at(
        &self,
        replica: ReplicaId,
        path: &Path,
        known: Option<Ino>,
        attr: &Attr,
    ) {
        if known.is_some_and(|known| self.inodes.lock().is_same(known, replica, attr)) {
            return self.name_freshness.forget(path);
        }
        self.record_server_answer(
            replica,
            path,
            Some(InodeIdentity { ino: attr.id.ino, generation: attr.generation }),
        );
    }

    fn record_server_answer(&self, replica: ReplicaId, path: &Path, object: Option<InodeIdentity>) {
        self.name_freshness
            .record(path, ServerAnswer { replica, object, recorded_at: Instant::now() });
    }
}

/// Whether the error is that of a name that was removed, or that a mount does not know of.
fn is_missing_name_error(error: BackendError) -> bool {
    matches!(error, BackendError::Os(Errno::NOENT | Errno::STALE))
}

/// Has the replica's mount look at the names of the directory in which `path` is.
fn refresh_parent(backend: &dyn Backend, path: &Path) {
    let _ = backend.revalidate_dir(&ObjectRef::unchecked(path.parent().unwrap_or(Path::new(""))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_remembered_until_all_mounts_have_looked_at_it_again() {
        let (newer, start) = (NameFreshness::default(), Instant::now());
        let (a, b, gone) = (Path::new("d/a"), Path::new("d/b"), Path::new("d/gone"));
        assert_eq!(newer.preferred_replica(a, start), None);
        let known = Some(InodeIdentity { ino: 2, generation: Default::default() });
        let noted = |replica, object, at| ServerAnswer {
            replica: ReplicaId::new(replica),
            object,
            recorded_at: at,
        };
        newer.record(a, noted(2, known, start));
        newer.record(gone, noted(0, None, start));
        newer.record(b, noted(1, known, start + NAME_CACHE_LIFETIME / 2));
        let first = |path, after| newer.preferred_replica(path, start + after);
        assert_eq!(first(a, Duration::ZERO), Some(ReplicaId::new(2)));
        assert_eq!(first(gone, Duration::ZERO), None);
        assert_eq!(first(b, NAME_CACHE_LIFETIME / 2), Some(ReplicaId::new(1)));
        assert_eq!(first(a, NAME_CACHE_LIFETIME), None);
        assert_eq!(first(b, NAME_CACHE_LIFETIME), Some(ReplicaId::new(1)));
        assert_eq!(first(b, NAME_CACHE_LIFETIME * 2), None);
        assert!(!newer.is_nonempty.load(Ordering::Relaxed), "nothing is looked up any more");
    }
}
