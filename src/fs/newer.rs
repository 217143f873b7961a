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
use crate::backend::{Attr, Backend, BackendError, BackendFile, Known, Name, Target};
use crate::volume::{Mode, ReplicaId};

/// For so long a mount may believe in a name: an NFS mount does for 60 s (acdirmax).
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// So many names are remembered. The one that was noted first is forgotten first.
const MOST: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names of which some mount has learned from its server what they stand for.
pub(super) struct Newer {
    /// Whether there are any.
    any: AtomicBool,
    names: Mutex<LruCache<[u8; 16], Noted>>,
}

/// What a replica's server showed.
#[derive(Clone, Copy)]
struct Noted {
    replica: ReplicaId,
    /// `None`: nothing has the name, or what had it was gone when it was opened.
    object: Option<Known>,
    at: Instant,
}

impl Noted {
    /// Whether `shown` is what the server showed.
    fn agrees(&self, shown: Option<&Attr>) -> bool {
        match (&self.object, shown) {
            (Some(object), Some(attr)) => object.is(attr),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Default for Newer {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), names: Mutex::new(LruCache::new(MOST)) }
    }
}

fn key(path: &Path) -> [u8; 16] {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&hash.as_bytes()[..16]);
    key
}

impl Newer {
    fn note(&self, path: &Path, noted: Noted) {
        let mut names = self.names.lock();
        names.push(key(path), noted);
        self.any.store(true, Ordering::Relaxed);
    }

    /// The name stands for what was known before.
    fn forget(&self, path: &Path) {
        if self.any.load(Ordering::Relaxed) {
            self.names.lock().pop(&key(path));
        }
    }

    /// The replica to be asked first about `path`, if there is one.
    pub(super) fn first(&self, path: &Path, now: Instant) -> Option<ReplicaId> {
        let noted = self.noted(path, now)?;
        noted.object.map(|_| noted.replica)
    }

    fn noted(&self, path: &Path, now: Instant) -> Option<Noted> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut names = self.names.lock();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= BELIEVED_FOR;
        while names.peek_lru().is_some_and(|(_, noted)| is_old(noted.at)) {
            names.pop_lru();
        }
        self.any.store(!names.is_empty(), Ordering::Relaxed);
        // A look does not make it younger.
        names.peek(&key(path)).filter(|noted| !is_old(noted.at)).copied()
    }
}

/// A replica that is asked about a path.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) replica: ReplicaId,
    pub(super) backend: &'a dyn Backend,
    pub(super) path: &'a Path,
}

impl Fs {
    /// Opens what is at the path, where `ino` was found. Blocks, as all these do: call it on
    /// that replica's pool.
    pub(super) fn open_as_named(
        &self,
        ino: Ino,
        at: At<'_>,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        self.as_named(at, || Some(ino), || at.backend.open(at.path), |(_, attr)| attr)
    }

    /// Attributes of what is at the path, where `ino` was found.
    pub(super) fn stat_as_known(&self, ino: Ino, at: At<'_>) -> Result<Attr, BackendError> {
        self.as_named(at, || Some(ino), || at.backend.stat(at.path), |attr| attr)
    }

    /// Attributes of what has this name in `parent`, which is at the path.
    pub(super) fn stat_as_named(
        &self,
        (parent, name): (Ino, &OsStr),
        at: At<'_>,
        named: &Name,
    ) -> Result<Attr, BackendError> {
        let known = || self.inodes.lock().named(parent, name);
        self.as_named(at, known, || at.backend.stat_entry(named), |attr| attr)
    }

    /// What `look` shows; what it shows then, where the mount first had to ask its server.
    fn as_named<T>(
        &self,
        at: At<'_>,
        known: impl Fn() -> Option<Ino>,
        look: impl Fn() -> Result<T, BackendError>,
        attr: impl Fn(&T) -> &Attr,
    ) -> Result<T, BackendError> {
        let shown = look();
        if self.policy.mode != Mode::Shared {
            // The first replica decides, whatever it shows.
            return shown;
        }
        let object = match &shown {
            Ok(shown) => Some(attr(shown)),
            Err(error) if may_be_gone(*error) => None,
            Err(_) => return shown,
        };
        if !self.is_doubtful(at, &known, object) {
            return shown;
        }
        look_again(at.backend, at.path);
        let shown = look();
        match &shown {
            Ok(shown) => self.is_shown(at.replica, at.path, known(), attr(shown)),
            Err(error) if may_be_gone(*error) => self.note_shown(at.replica, at.path, None),
            Err(_) => {}
        }
        shown
    }

    /// Whether a mount that shows this object, or none, has to ask its server first.
    fn is_doubtful(
        &self,
        at: At<'_>,
        known: impl Fn() -> Option<Ino>,
        shown: Option<&Attr>,
    ) -> bool {
        match self.newer.noted(at.path, Instant::now()) {
            Some(noted) if noted.agrees(shown) => return false,
            Some(noted) if noted.replica != at.replica || noted.object.is_none() => return true,
            _ => {}
        }
        let Some(known) = known() else { return false };
        shown.is_none_or(|attr| !self.inodes.lock().is_same(known, at.replica, attr))
    }

    /// The server of `replica` shows `attr` at `path`, where `known` was.
    pub(super) fn is_shown(
        &self,
        replica: ReplicaId,
        path: &Path,
        known: Option<Ino>,
        attr: &Attr,
    ) {
        if known.is_some_and(|known| self.inodes.lock().is_same(known, replica, attr)) {
            return self.newer.forget(path);
        }
        self.note_shown(
            replica,
            path,
            Some(Known { ino: attr.id.ino, generation: attr.generation }),
        );
    }

    fn note_shown(&self, replica: ReplicaId, path: &Path, object: Option<Known>) {
        self.newer.note(path, Noted { replica, object, at: Instant::now() });
    }
}

/// Whether the error is that of a name that was removed, or that a mount does not know of.
fn may_be_gone(error: BackendError) -> bool {
    matches!(error, BackendError::Os(Errno::NOENT | Errno::STALE))
}

/// Has the replica's mount look at the names of the directory in which `path` is.
fn look_again(backend: &dyn Backend, path: &Path) {
    let _ = backend.refresh(&Target::named(path.parent().unwrap_or(Path::new(""))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_remembered_until_all_mounts_have_looked_at_it_again() {
        let (newer, start) = (Newer::default(), Instant::now());
        let (a, b, gone) = (Path::new("d/a"), Path::new("d/b"), Path::new("d/gone"));
        assert_eq!(newer.first(a, start), None);
        let known = Some(Known { ino: 2, generation: Default::default() });
        let noted = |replica, object, at| Noted { replica: ReplicaId::new(replica), object, at };
        newer.note(a, noted(2, known, start));
        newer.note(gone, noted(0, None, start));
        newer.note(b, noted(1, known, start + BELIEVED_FOR / 2));
        let first = |path, after| newer.first(path, start + after);
        assert_eq!(first(a, Duration::ZERO), Some(ReplicaId::new(2)));
        assert_eq!(first(gone, Duration::ZERO), None);
        assert_eq!(first(b, BELIEVED_FOR / 2), Some(ReplicaId::new(1)));
        assert_eq!(first(a, BELIEVED_FOR), None);
        assert_eq!(first(b, BELIEVED_FOR), Some(ReplicaId::new(1)));
        assert_eq!(first(b, BELIEVED_FOR * 2), None);
        assert!(!newer.any.load(Ordering::Relaxed), "nothing is looked up any more");
    }
}
