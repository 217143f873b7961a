//! The object that a name stood for when a mount last asked its server.
//!
//! Another client replaces a file. One replica's mount shows the new file, and the other
//! mounts show the old one until their caches expire. After fanfs has shown the new file, a
//! lookup on another replica would go back in time: the name would stand for the old file
//! again, and an open that failed with ESTALE would fail once more. One NFS mount never goes
//! back.
//!
//! So a mount that contradicts the object known by a name asks its server for the directory
//! before fanfs believes it, and fanfs remembers the answer. For a minute every mount that
//! contradicts that answer asks its server, too. The replica that found an object is asked
//! first about its name. A replica that found none is not: it may have lost the file, and
//! the others would not be heard.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{EntryName, Fs, Ino, Inodes};
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, EntryRef, InodeIdentity, ObjectRef,
};
use crate::volume::{ReplicaId, VolumeMode};

/// A mount may keep a name in its cache for this long: an NFS mount does for 60 s (acdirmax).
const NAME_CACHE_LIFETIME: Duration = Duration::from_secs(60);

/// The number of names remembered. The oldest is evicted first.
const MAX_TRACKED_NAMES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names about which some mount has asked its server.
pub(super) struct NameFreshness {
    /// Whether there are any; read without the lock.
    is_nonempty: AtomicBool,
    names: Mutex<LruCache<[u8; 16], ServerAnswer>>,
}

/// The answer of a replica's server.
#[derive(Clone, Copy)]
struct ServerAnswer {
    replica: ReplicaId,
    /// `None`: there is no object, or it is not certain which.
    object: Option<InodeIdentity>,
    recorded_at: Instant,
}

impl ServerAnswer {
    /// Whether a mount that shows this object, or none, agrees with the server.
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
    fn record(&self, path: &Path, answer: ServerAnswer) {
        let mut names = self.names.lock();
        names.push(key(path), answer);
        self.is_nonempty.store(true, Ordering::Relaxed);
    }

    /// The name stands for the object that was known before.
    fn forget(&self, path: &Path) {
        if self.is_nonempty.load(Ordering::Relaxed) {
            self.names.lock().pop(&key(path));
        }
    }

    /// The replica to be asked first about `path`, if there is one.
    pub(super) fn preferred_replica(&self, path: &Path, now: Instant) -> Option<ReplicaId> {
        let answer = self.get(path, now)?;
        answer.object.map(|_| answer.replica)
    }

    fn get(&self, path: &Path, now: Instant) -> Option<ServerAnswer> {
        if !self.is_nonempty.load(Ordering::Relaxed) {
            return None;
        }
        let mut names = self.names.lock();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= NAME_CACHE_LIFETIME;
        while names.peek_lru().is_some_and(|(_, answer)| is_old(answer.recorded_at)) {
            names.pop_lru();
        }
        self.is_nonempty.store(!names.is_empty(), Ordering::Relaxed);
        // Reading it does not make it younger.
        names.peek(&key(path)).filter(|answer| !is_old(answer.recorded_at)).copied()
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
    /// Opens the file at the path, where `ino` was found. Blocks, as all these do: call it on
    /// that replica's pool.
    pub(super) fn open_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        self.with_revalidation(at, |_| Some(ino), || at.backend.open(at.path), |(_, attr)| attr)
    }

    /// Attributes of the object at the path, where `ino` was found.
    pub(super) fn stat_inode_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<Attr, BackendError> {
        self.with_revalidation(at, |_| Some(ino), || at.backend.stat(at.path), |attr| attr)
    }

    /// Attributes of the entry, which is at the path.
    pub(super) fn stat_revalidated(
        &self,
        at: EntryName<'_>,
        place: ReplicaPath<'_>,
        entry: &EntryRef,
    ) -> Result<Attr, BackendError> {
        let known = |inodes: &Inodes| inodes.child(at.parent, at.name);
        self.with_revalidation(place, known, || place.backend.stat_entry(entry), |attr| attr)
    }

    /// The result of `look`, made again where the mount first had to ask its server.
    fn with_revalidation<T>(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn(&Inodes) -> Option<Ino>,
        look: impl Fn() -> Result<T, BackendError>,
        attr: impl Fn(&T) -> &Attr,
    ) -> Result<T, BackendError> {
        let first = look();
        if self.policy.mode != VolumeMode::Shared {
            // The first replica decides, whatever it shows.
            return first;
        }
        let shown = match &first {
            Ok(found) => Some(attr(found)),
            Err(error) if is_missing_name_error(*error) => None,
            Err(_) => return first,
        };
        if !self.must_revalidate(at, &known, shown) {
            return first;
        }
        refresh_parent(at.backend, at.path);
        let second = look();
        match &second {
            Ok(found) => self.record_object_at(at, &known, attr(found)),
            Err(error) if is_missing_name_error(*error) => {
                self.record_uncertain_name(at.replica, at.path);
            }
            Err(_) => {}
        }
        second
    }

    /// Whether a mount that shows this object, or none, has to ask its server first.
    fn must_revalidate(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn(&Inodes) -> Option<Ino>,
        shown: Option<&Attr>,
    ) -> bool {
        match self.name_freshness.get(at.path, Instant::now()) {
            Some(answer) if answer.is_consistent_with(shown) => return false,
            Some(answer) if answer.replica != at.replica || answer.object.is_none() => return true,
            _ => {}
        }
        let inodes = self.inodes.lock();
        let Some(known) = known(&inodes) else { return false };
        shown.is_none_or(|attr| !inodes.is_same(known, at.replica, attr))
    }

    /// The server of the replica has shown this object.
    fn record_object_at(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn(&Inodes) -> Option<Ino>,
        attr: &Attr,
    ) {
        let is_known = {
            let inodes = self.inodes.lock();
            known(&inodes).is_some_and(|known| inodes.is_same(known, at.replica, attr))
        };
        if is_known {
            return self.name_freshness.forget(at.path);
        }
        let object = InodeIdentity { ino: attr.id.ino, generation: attr.generation };
        self.record_server_answer(at.replica, at.path, Some(object));
    }

    /// The replica does not show the known object at `path`. Every mount that shows one has to
    /// ask its server.
    pub(super) fn record_uncertain_name(&self, replica: ReplicaId, path: &Path) {
        self.record_server_answer(replica, path, None);
    }

    fn record_server_answer(&self, replica: ReplicaId, path: &Path, object: Option<InodeIdentity>) {
        let answer = ServerAnswer { replica, object, recorded_at: Instant::now() };
        self.name_freshness.record(path, answer);
    }
}

/// Whether a removed or replaced name causes this error.
fn is_missing_name_error(error: BackendError) -> bool {
    matches!(error, BackendError::Os(Errno::NOENT | Errno::STALE))
}

/// Has the replica's mount check its cached names in the parent directory of `path`.
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
