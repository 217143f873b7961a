//! Calls that make a replica's mount ask its server first, if the mount may show an older object by
//! a name ([`crate::fs::name_freshness`]).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::Tables;
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, EntryRef, InodeIdentity, ObjectRef,
};
use crate::fs::entry_name::EntryName;
use crate::fs::ino::Ino;
use crate::fs::inodes::Inodes;
use crate::fs::name_freshness::ServerAnswer;
use crate::volume::{ReplicaId, VolumeMode};

/// A path on one replica.
#[derive(Clone, Copy)]
pub(in crate::fs) struct ReplicaPath<'a> {
    pub(in crate::fs) replica: ReplicaId,
    pub(in crate::fs) backend: &'a dyn Backend,
    pub(in crate::fs) path: &'a Path,
}

impl Tables {
    /// Opens the file at the path, where `ino` was found. Blocks, as the other calls here do: call
    /// them on that replica's pool.
    pub(in crate::fs) fn open_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        self.with_revalidation(at, |_| Some(ino), || at.backend.open(at.path), |(_, attr)| attr)
    }

    /// Attributes of the object at the path, where `ino` was found. Blocks.
    pub(in crate::fs) fn stat_inode_revalidated(
        &self,
        ino: Ino,
        at: ReplicaPath<'_>,
    ) -> Result<Attr, BackendError> {
        self.with_revalidation(at, |_| Some(ino), || at.backend.stat(at.path), |attr| attr)
    }

    /// Attributes of the entry, which is at the path. Blocks.
    pub(in crate::fs) fn stat_revalidated(
        &self,
        at: EntryName<'_>,
        place: ReplicaPath<'_>,
        entry: &EntryRef,
    ) -> Result<Attr, BackendError> {
        let known = |inodes: &Inodes| inodes.child(at.parent, at.name);
        self.with_revalidation(place, known, || place.backend.stat_entry(entry), |attr| attr)
    }

    /// The result of `look`, repeated if the mount first had to ask its server.
    fn with_revalidation<T>(
        &self,
        at: ReplicaPath<'_>,
        known: impl Fn(&Inodes) -> Option<Ino>,
        look: impl Fn() -> Result<T, BackendError>,
        attr: impl Fn(&T) -> &Attr,
    ) -> Result<T, BackendError> {
        let first = look();
        if self.policy.mode != VolumeMode::Shared {
            // The first replica decides, so nothing is compared.
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

    /// Whether a mount that shows this object, or none, must ask its server first.
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

    /// Records that the server of the replica has shown this object.
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

    /// Records that the replica does not show the known object at `path`. Every mount that shows an
    /// object there must ask its server.
    pub(in crate::fs) fn record_uncertain_name(&self, replica: ReplicaId, path: &Path) {
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

/// Makes the replica's mount check its cached names in the parent directory of `path`.
fn refresh_parent(backend: &dyn Backend, path: &Path) {
    let _ = backend.revalidate_dir(&ObjectRef::unchecked(path.parent().unwrap_or(Path::new(""))));
}
