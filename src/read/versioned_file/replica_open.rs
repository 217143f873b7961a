//! Opens a file on a replica at the pinned version.
//!
//! An existing descriptor of the replica is checked first, then the file's name. Another client may
//! have removed or replaced the file. Then the name leads elsewhere, and the descriptor is the only
//! way to the data. Over NFSv4 such a descriptor may be *mute*: reads still succeed, as the server
//! keeps an open file, but fstat(2) fails with ESTALE. Data read from it belongs to the last
//! version that it showed: removing the file's name changed its ctime and none of its data. So a
//! mute descriptor serves that version regardless of ctime.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::{VERSION_BAN, VersionedFile};
use crate::backend::{Attr, Backend, BackendError, BackendFile, ObjectRef, enter_call};
use crate::read::replica_slot::{Descriptor, LastVersion};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};

/// Whether a mute descriptor can still be read.
fn is_readable(file: &dyn BackendFile) -> bool {
    file.read_at(0, &mut [0]).is_ok()
}

/// Whether the server no longer knows the file handle.
fn is_stale<T>(attr: &Result<T, BackendError>) -> bool {
    matches!(attr, Err(BackendError::Os(Errno::STALE)))
}

impl VersionedFile {
    /// The file on replica `id` at this version, opened if necessary. Blocks; call it on that
    /// replica's pool.
    ///
    /// # Errors
    /// [`BackendError::VersionMismatch`] if the replica has another version, and any error of the
    /// open.
    pub fn open_on(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        if self.content_check.excluded().contains(id) {
            return Err(BackendError::VersionMismatch);
        }
        self.open_for_comparison(id, backend)
    }

    /// The same, even if the replica is excluded from the file: its data is compared, not
    /// delivered.
    ///
    /// # Errors
    /// As [`VersionedFile::open_on`]'s.
    pub(in crate::read) fn open_for_comparison(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let slot = &self.replicas[id];
        if let Descriptor::Verified(file) = &*slot.descriptor.lock() {
            return Ok(Arc::clone(file));
        }
        // The pool must know the file even while this waits for another open of it.
        enter_call(&self.path);
        let _alone = slot.opening.lock();
        let older = match &*slot.descriptor.lock() {
            Descriptor::Verified(file) => return Ok(Arc::clone(file)),
            Descriptor::Unverified(file, opened) => Some((Arc::clone(file), *opened)),
            Descriptor::Closed => None,
        };
        if slot.is_banned() {
            return Err(BackendError::VersionMismatch);
        }
        let _assumed = self.credentials().assume()?;
        let error = match self.open_or_reuse(id, older, backend) {
            // Meanwhile, a read has found less than this version promises.
            Ok(_) if slot.is_banned() => return Err(BackendError::VersionMismatch),
            Ok(file) => {
                self.record_verified_open(id, Arc::clone(&file));
                return Ok(file);
            }
            Err(error @ BackendError::VersionMismatch) => error,
            Err(error) => return Err(error),
        };
        let mut refused = slot.banned_until.lock();
        let held = slot.descriptor.lock();
        // Another open has verified it since.
        if let Descriptor::Verified(file) = &*held {
            return Ok(Arc::clone(file));
        }
        *refused = Some(Instant::now() + VERSION_BAN);
        self.version_banned.set_member(id, true);
        Err(error)
    }

    /// Whether `attr` belong to this version of this file.
    fn is_this_version(&self, attr: &Attr) -> bool {
        self.is_version(attr) && self.file_identity.is_match(self.mode, attr)
    }

    /// The file at this version: the open file `older`, or the file that has the name.
    fn open_or_reuse(
        &self,
        id: ReplicaId,
        older: Option<(Arc<dyn BackendFile>, LastVersion)>,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let still_is =
            |file: &Arc<dyn BackendFile>| file.attr().is_ok_and(|attr| self.is_this_version(&attr));
        if let Some((file, _)) =
            older.as_ref().filter(|(file, _)| !self.must_reopen && still_is(file))
        {
            return Ok(Arc::clone(file));
        }
        let mut opened = self.open_by_name(backend);
        if self.is_name_stale(&opened) && self.mode == VolumeMode::Shared {
            // This mount's cached names may be older than the file.
            let dir = self.path.parent().unwrap_or(Path::new(""));
            if backend.revalidate_dir(&ObjectRef::unchecked(dir)).is_ok() {
                opened = self.open_by_name(backend);
            }
        }
        let is_stale_name = self.is_name_stale(&opened);
        // Its permissions may have changed since the caller opened it.
        let is_refused = matches!(opened, Err(BackendError::Os(Errno::ACCESS | Errno::PERM)));
        if let Some((file, at)) = older
            && ((is_stale_name || is_refused) && self.must_reopen && still_is(&file)
                || is_stale_name && self.can_serve_stale_descriptor(&file, at))
        {
            return Ok(file);
        }
        match opened {
            Ok((file, attr)) if self.is_this_version(&attr) => {
                self.file_identity.add_generation(attr.generation);
                Ok(file)
            }
            Ok((_, attr)) => {
                self.log_version_mismatch(id, &attr);
                Err(BackendError::VersionMismatch)
            }
            // The open asked no replica, so this is the answer to it.
            Err(error @ BackendError::Os(Errno::ACCESS | Errno::PERM)) if self.is_unopened() => {
                Err(error)
            }
            // The other replicas have the file; a replica without it does not have this version
            // either.
            Err(error) if error.is_definite() || is_stale::<()>(&Err(error)) => {
                Err(BackendError::VersionMismatch)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the name leads to another file, or to none.
    fn is_name_stale<T>(&self, opened: &Result<(T, Attr), BackendError>) -> bool {
        match opened {
            Ok((_, attr)) => {
                let is_another = attr.id.ino != self.version.ino;
                self.mode == VolumeMode::Shared && is_another
                    || !self.file_identity.is_match(self.mode, attr)
            }
            Err(error) => matches!(error, BackendError::Os(Errno::NOENT | Errno::STALE)),
        }
    }

    /// Whether a mute descriptor, which last showed version `at`, can serve this version.
    fn can_serve_stale_descriptor(&self, file: &Arc<dyn BackendFile>, at: LastVersion) -> bool {
        let is_it = |at: FileVersion| {
            FileVersion { ctime: self.version.ctime, ..at }
                .is_same_version(&self.version, self.mode)
        };
        matches!(at, LastVersion::Known(at) if is_it(at))
            && is_stale(&file.attr())
            && is_readable(&**file)
    }

    /// Logs that a replica has another version. In a `copies` volume, a differing copy is a fault
    /// of the volume. In a `shared` one, a client has changed or replaced the file, which is
    /// ordinary.
    fn log_version_mismatch(&self, id: ReplicaId, attr: &Attr) {
        let replica = id.index();
        let version = self.version;
        match self.mode {
            VolumeMode::Copies => tracing::warn!(
                replica,
                expected_size = version.size,
                size = attr.size,
                expected_mtime = version.mtime.0,
                mtime = attr.mtime.0,
                "the replica has another version of a file; fanfs does not read the file from it"
            ),
            VolumeMode::Shared => {
                tracing::debug!(replica, "the replica has another version of a file")
            }
        }
        tracing::debug!(path = ?self.path, "the file with another version");
    }

    fn open_by_name(
        &self,
        backend: &dyn Backend,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        match self.file_identity.has_name() {
            true => backend.open(&self.path),
            false => Err(Errno::NOENT.into()),
        }
    }

    /// The file on replica `id` at its current version; opened if necessary, as by
    /// [`VersionedFile::open_on`].
    ///
    /// # Errors
    /// As [`VersionedFile::open_on`].
    pub fn open_any_version_on(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        match self.descriptor_on(id) {
            Some(file) => Ok(file),
            None => self.open_on(id, backend),
        }
    }

    /// The file on replica `id` at its current version; opened without a check of the version if
    /// necessary, and kept open. Blocks, as [`VersionedFile::open_on`] does.
    ///
    /// # Errors
    /// [`BackendError::VersionMismatch`] if another file has its name, or it has no name any more.
    pub fn open_unchecked(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let slot = &self.replicas[id];
        if let Some(file) = slot.descriptor.lock().file() {
            return Ok(Arc::clone(file));
        }
        let _alone = slot.opening.lock();
        if let Some(file) = slot.descriptor.lock().file() {
            return Ok(Arc::clone(file));
        }
        let _assumed = self.credentials().assume()?;
        if !self.file_identity.has_name() {
            return Err(BackendError::VersionMismatch);
        }
        let (file, attr) = backend.open(&self.path)?;
        if attr.id.ino != self.version.ino || !self.file_identity.is_match(self.mode, &attr) {
            return Err(BackendError::VersionMismatch);
        }
        *slot.descriptor.lock() =
            Descriptor::Unverified(Arc::clone(&file), LastVersion::Known(attr.version()));
        Ok(file)
    }

    /// Its current attributes on replica `id`; opened if necessary. A mute descriptor means a file
    /// without a name.
    ///
    /// # Errors
    /// As [`VersionedFile::open_on`].
    pub fn attr_on(&self, id: ReplicaId, backend: &dyn Backend) -> Result<Attr, BackendError> {
        let file = self.open_any_version_on(id, backend)?;
        let attr = file.attr();
        match self.last_attr().filter(|_| is_stale(&attr) && is_readable(&*file)) {
            Some(last) => Ok(Attr { nlink: 0, ..last }),
            None => attr,
        }
    }
}
