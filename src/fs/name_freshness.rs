//! The object that a mount's server last showed by a name.
//!
//! Another client replaces a file. One replica's mount shows the new file, and the other mounts
//! show the old one until their caches expire. After fanfs has shown the new file, a lookup on
//! another replica would go back in time. The name would lead to the old file again, and an open
//! that failed with ESTALE would fail once more. A single NFS mount never goes back.
//!
//! So a mount that contradicts the object known by a name asks its server for the directory before
//! fanfs trusts it ([`super::tables`]). This module remembers the answer. For a minute every mount
//! that contradicts it also asks its server. The replica that found an object is asked first about
//! its name. A replica that found none is not: it may have lost the file, and the other replicas
//! would not be asked.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::backend::{Attr, InodeIdentity};
use crate::volume::ReplicaId;

/// A mount may keep a name in its cache for this long: an NFS mount does for 60 s (acdirmax).
const NAME_CACHE_LIFETIME: Duration = Duration::from_secs(60);

/// The number of names remembered. The oldest is evicted first.
const MAX_TRACKED_NAMES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The last server answers, by the hash of the path.
pub(super) struct NameFreshness {
    /// Whether there are any answers; read without the lock.
    is_nonempty: AtomicBool,
    names: Mutex<LruCache<[u8; 16], ServerAnswer>>,
}

/// The answer of a replica's server.
#[derive(Clone, Copy)]
pub(super) struct ServerAnswer {
    pub(super) replica: ReplicaId,
    /// `None`: there is no object, or it is not certain which.
    pub(super) object: Option<InodeIdentity>,
    pub(super) recorded_at: Instant,
}

impl ServerAnswer {
    /// Whether a mount that shows this object, or none, agrees with the server.
    pub(super) fn is_consistent_with(&self, shown: Option<&Attr>) -> bool {
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
    /// Records the answer of a server about `path`.
    pub(super) fn record(&self, path: &Path, answer: ServerAnswer) {
        let mut names = self.names.lock();
        names.push(key(path), answer);
        self.is_nonempty.store(true, Ordering::Relaxed);
    }

    /// Forgets the answer: the name leads to the object that was known before.
    pub(super) fn forget(&self, path: &Path) {
        if self.is_nonempty.load(Ordering::Relaxed) {
            self.names.lock().pop(&key(path));
        }
    }

    /// The replica to ask first about `path`, if any.
    pub(super) fn preferred_replica(&self, path: &Path, now: Instant) -> Option<ReplicaId> {
        let answer = self.get(path, now)?;
        answer.object.map(|_| answer.replica)
    }

    /// The answer of a server about `path`, if a mount has asked within [`NAME_CACHE_LIFETIME`].
    pub(super) fn get(&self, path: &Path, now: Instant) -> Option<ServerAnswer> {
        if !self.is_nonempty.load(Ordering::Relaxed) {
            return None;
        }
        let mut names = self.names.lock();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= NAME_CACHE_LIFETIME;
        while names.peek_lru().is_some_and(|(_, answer)| is_old(answer.recorded_at)) {
            names.pop_lru();
        }
        self.is_nonempty.store(!names.is_empty(), Ordering::Relaxed);
        // `peek` does not count as a use, so the order stays that of the answers.
        names.peek(&key(path)).filter(|answer| !is_old(answer.recorded_at)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_until_all_mounts_have_revalidated_it() {
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
