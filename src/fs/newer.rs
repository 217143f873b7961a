//! Which replica has shown a newer object by a name.
//!
//! Another client replaces a file. One replica's mount shows the new one, and the others'
//! mounts show the old one until their caches expire. Once the new one was seen, a look at
//! another replica would go back in time: a name would stand for the new file and then for
//! the old one again, and an open that found the old one gone would be tried again with the
//! same answer. One NFS mount never goes back. So the replica that showed the new object is
//! asked first about that name, until the others' caches have expired. Where it is late and
//! another one shows the old object, that one's mount is made to look again.
//!
//! A replica that shows a name to be gone is not asked first: it may have lost the file, and
//! the others would not be heard. Another replica that still shows the object is made to
//! look again, and is believed then.

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
use crate::backend::{Attr, Backend, BackendError, BackendFile, Name, Target, Timestamp};
use crate::volume::{Mode, ReplicaId};

/// For so long a mount may believe in a name: an NFS mount does for 60 s (acdirmax).
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// So many names are remembered. The one that was noted first is forgotten first.
const MOST: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names that some replica shows newer objects by than others may.
pub(super) struct Newer {
    /// Whether there are any.
    any: AtomicBool,
    names: Mutex<LruCache<[u8; 16], Noted>>,
}

/// What a replica showed that is newer than what another one may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Showed {
    Another,
    Nothing,
}

/// The replica that showed it.
#[derive(Clone, Copy)]
struct Noted {
    replica: ReplicaId,
    showed: Showed,
    /// The older one, and the latest ctime that was shown of it.
    older: (Ino, Option<Timestamp>),
    at: Instant,
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
    /// At `path`, `noted.replica` shows a newer object than another one did.
    fn note(&self, path: &Path, noted: Noted) {
        let mut names = self.names.lock();
        names.push(key(path), noted);
        self.any.store(true, Ordering::Relaxed);
    }

    /// The replica to be asked first about `path`, if there is one.
    pub(super) fn first(&self, path: &Path, now: Instant) -> Option<ReplicaId> {
        let noted = self.noted(path, now)?;
        (noted.showed == Showed::Another).then_some(noted.replica)
    }

    /// The object at `path` that was said to be gone is there after all.
    fn is_there(&self, path: &Path) {
        let (mut names, key) = (self.names.lock(), key(path));
        if names.peek(&key).is_some_and(|noted| noted.showed == Showed::Nothing) {
            names.pop(&key);
        }
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

impl Fs {
    /// Opens what is at `path`, where `ino` was found. Looks twice as [`Fs::stat_as_named`]
    /// does. Blocks; call it on that replica's pool.
    pub(super) fn open_as_named(
        &self,
        ino: Ino,
        replica: ReplicaId,
        backend: &dyn Backend,
        path: &Path,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        let look = || backend.open(path);
        self.as_named(|| Some(ino), (replica, backend, path), look, |(_, attr)| attr)
    }

    /// Attributes of what has this name, which is at `path`. A mount that shows an older
    /// object than another one did, or that does not find what was found by this name, looks
    /// at the names of that directory once more. Blocks; call it on that replica's pool.
    pub(super) fn stat_as_named(
        &self,
        (parent, name): (Ino, &OsStr),
        replica: ReplicaId,
        backend: &dyn Backend,
        (at, path): (&Name, &Path),
    ) -> Result<Attr, BackendError> {
        let known = || self.inodes.lock().named(parent, name);
        let look = || backend.stat_entry(at);
        self.as_named(known, (replica, backend, path), look, |attr| attr)
    }

    fn as_named<T>(
        &self,
        known: impl Fn() -> Option<Ino>,
        (replica, backend, path): (ReplicaId, &dyn Backend, &Path),
        look: impl Fn() -> Result<T, BackendError>,
        attr: impl Fn(&T) -> &Attr,
    ) -> Result<T, BackendError> {
        let shown = look();
        if self.policy.mode != Mode::Shared {
            return shown;
        }
        let is_older = |shown: &T| self.is_older(path, replica, attr(shown));
        let looks_again = match &shown {
            Ok(shown) => is_older(shown),
            Err(error) => may_be_gone(*error) && known().is_some(),
        };
        if !looks_again {
            return shown;
        }
        look_again(backend, path);
        let shown = look();
        match &shown {
            Ok(shown) if is_older(shown) => self.newer.is_there(path),
            Err(error) if *error == GONE => {
                known().into_iter().for_each(|known| self.is_gone(known, path, replica));
            }
            _ => {}
        }
        shown
    }

    /// `replica` shows that `known`, which was at `path`, is gone.
    fn is_gone(&self, known: Ino, path: &Path, replica: ReplicaId) {
        let older = (known, self.inodes.lock().shown(known));
        let noted = Noted { replica, showed: Showed::Nothing, older, at: Instant::now() };
        self.newer.note(path, noted);
    }

    /// Whether `replica`, which shows `attr` at `path`, shows an older object than another one
    /// has shown.
    fn is_older(&self, path: &Path, replica: ReplicaId, attr: &Attr) -> bool {
        let noted = self.newer.noted(path, Instant::now());
        noted.filter(|noted| noted.replica != replica).is_some_and(|noted| {
            let (older, shown) = noted.older;
            shown.is_some_and(|shown| attr.ctime <= shown)
                || self.inodes.lock().is_same(older, replica, attr)
        })
    }

    /// `replica` shows `attr` at `path`, where the object `known` was shown before: another
    /// one. Replicas of a volume of copies are asked in their order, whatever they show.
    pub(super) fn shows_another(&self, known: Ino, path: &Path, replica: ReplicaId, attr: &Attr) {
        if self.policy.mode != Mode::Shared {
            return;
        }
        let shown = self.inodes.lock().shown(known);
        if shown.is_some_and(|shown| attr.ctime > shown) {
            let older = (known, shown);
            let noted = Noted { replica, showed: Showed::Another, older, at: Instant::now() };
            self.newer.note(path, noted);
        }
    }
}

/// There is no such name.
const GONE: BackendError = BackendError::Os(Errno::NOENT);

/// Whether the error is that of a name that was removed, or that a mount does not know of.
fn may_be_gone(error: BackendError) -> bool {
    error == GONE || error == BackendError::Os(Errno::STALE)
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
        let (a, b) = (Path::new("d/a"), Path::new("d/b"));
        assert_eq!(newer.first(a, start), None);
        let noted = |replica, at| Noted {
            replica: ReplicaId::new(replica),
            showed: Showed::Another,
            older: (Ino(2), None),
            at,
        };
        newer.note(a, noted(2, start));
        newer.note(b, noted(1, start + BELIEVED_FOR / 2));
        let first = |path, after| newer.first(path, start + after);
        assert_eq!(first(a, Duration::ZERO), Some(ReplicaId::new(2)));
        assert_eq!(first(b, BELIEVED_FOR / 2), Some(ReplicaId::new(1)));
        assert_eq!(first(a, BELIEVED_FOR), None);
        assert_eq!(first(b, BELIEVED_FOR), Some(ReplicaId::new(1)));
        assert_eq!(first(b, BELIEVED_FOR * 2), None);
        assert!(!newer.any.load(Ordering::Relaxed), "nothing is looked up any more");
    }
}
