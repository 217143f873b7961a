//! Opening a file on a replica, at the version that is read.
//!
//! A descriptor that the replica has open is looked at first, then the file's name. Another
//! client may have removed the file, or replaced it. Then the name leads elsewhere, and the
//! descriptor is the only way to the data. Over NFSv4 such a descriptor may be *mute*: reads
//! go on, as the server keeps an open file, and fstat(2) fails with ESTALE. What is read from
//! it belongs to the version that it showed last: removing the file's name has changed its
//! ctime and nothing of its data. A mute descriptor therefore serves that version, at
//! whatever ctime.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::{VERSION_BAN, VersionedFile};
use crate::backend::{Attr, Backend, BackendError, BackendFile, ObjectRef, enter_call};
use crate::read::replica_slot::{Descriptor, LastVersion};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};

/// Whether a descriptor that says nothing of its file can be read all the same.
fn is_readable(file: &dyn BackendFile) -> bool {
    file.read_at(0, &mut [0]).is_ok()
}

/// Whether the server does not know the file by its handle any more.
fn is_stale<T>(attr: &Result<T, BackendError>) -> bool {
    matches!(attr, Err(BackendError::Os(Errno::STALE)))
}

impl VersionedFile {
    /// The file as replica `id` has it open; opens it where needed. Blocks; call
    /// it on that replica's pool.
    ///
    /// # Errors
    /// [`BackendError::VersionMismatch`] where the replica shows another version, and
    /// whatever its open fails with.
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

    /// The same, also where the replica is kept off the file: what it has is compared,
    /// and not delivered.
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
        // The pool knows the file also where this waits for another open of it.
        enter_call(&self.path);
        let mut refused = slot.banned_until.lock();
        let older = match &*slot.descriptor.lock() {
            Descriptor::Verified(file) => return Ok(Arc::clone(file)),
            Descriptor::Unverified(file, opened) => Some((Arc::clone(file), *opened)),
            Descriptor::Closed => None,
        };
        if refused.is_some_and(|until| Instant::now() < until) {
            return Err(BackendError::VersionMismatch);
        }
        let _assumed = self.credentials().assume()?;
        let error = match self.open_or_reuse(id, older, backend) {
            Ok(file) => {
                self.record_verified_open(id, Arc::clone(&file));
                return Ok(file);
            }
            Err(error @ BackendError::VersionMismatch) => error,
            Err(error) => return Err(error),
        };
        let held = slot.descriptor.lock();
        // An open that began later has brought it meanwhile.
        if let Descriptor::Verified(file) = &*held {
            return Ok(Arc::clone(file));
        }
        *refused = Some(Instant::now() + VERSION_BAN);
        self.version_banned.set_member(id, true);
        Err(error)
    }

    /// Whether `attr` are of the version that is read.
    fn is_this_version(&self, attr: &Attr) -> bool {
        self.is_version(attr) && self.file_identity.is_match(self.mode, attr)
    }

    /// The file at this version: `older`, which is open there, or what has its name.
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
            // What this mount takes for the names there may be older than the file.
            let dir = self.path.parent().unwrap_or(Path::new(""));
            if backend.revalidate_dir(&ObjectRef::unchecked(dir)).is_ok() {
                opened = self.open_by_name(backend);
            }
        }
        if let Some((file, at)) = older.filter(|_| self.is_name_stale(&opened))
            && (self.must_reopen && still_is(&file) || self.can_serve_stale_descriptor(&file, at))
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
            // It is there for the others; a replica without it does not have
            // this version either.
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

    /// Whether this version can be read from a mute descriptor, which was `at` a version.
    fn can_serve_stale_descriptor(&self, file: &Arc<dyn BackendFile>, at: LastVersion) -> bool {
        let is_it = |at: FileVersion| {
            FileVersion { ctime: self.version.ctime, ..at }
                .is_same_version(&self.version, self.mode)
        };
        matches!(at, LastVersion::Known(at) if is_it(at))
            && is_stale(&file.attr())
            && is_readable(&**file)
    }

    /// In a volume of copies, a copy that differs is a fault of the volume. In a shared one
    /// the file was changed or replaced, which is ordinary.
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
                "a replica shows another version of a file and is kept off it"
            ),
            VolumeMode::Shared => {
                tracing::debug!(replica, "a replica shows another version of a file")
            }
        }
        tracing::debug!(path = ?self.path, "the file in question");
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

    /// The file as replica `id` has it open, at whatever version it is now; opens
    /// it where needed, as [`VersionedFile::open_on`] does.
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

    /// The file as replica `id` has it, at whatever version it is now; opens it
    /// where needed, and keeps it open. Blocks, as [`VersionedFile::open_on`] does.
    ///
    /// # Errors
    /// [`BackendError::VersionMismatch`] where another file has its name, or no name is left.
    pub fn open_unchecked(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let slot = &self.replicas[id];
        if let Some(file) = slot.descriptor.lock().file() {
            return Ok(Arc::clone(file));
        }
        let _alone = slot.banned_until.lock();
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

    /// Its attributes on replica `id`, at whatever version it is now; opens it where
    /// needed. A mute descriptor stands for a file without a name.
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
